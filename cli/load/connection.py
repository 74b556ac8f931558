"""Names of cli/connecting that bench/ imports from here."""

from cli.connecting.http_client import Connect as Connect
from cli.connecting.http_client import HttpClient as HttpClient
from cli.connecting.http_client import Streams as Streams
