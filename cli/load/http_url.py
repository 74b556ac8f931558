"""Names of cli/connecting that bench/ imports from here."""

from cli.connecting.http_url import HttpUrl as HttpUrl
from cli.connecting.http_url import parse_url as parse_url
