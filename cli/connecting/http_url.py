"""The base URL of a server, checked: scheme, host (an address of IPv6 stands in brackets), port and path."""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from mesh.config.config_checks import ConfigError


@dataclass(frozen=True, slots=True)
class HttpUrl:
    secure: bool
    host: str
    port: int
    path: str  # without a slash at its end

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{'https' if self.secure else 'http'}://{self.authority}{self.path}"


def parse_url(text: str) -> HttpUrl:
    """The base URL of an OpenAI API; without a path its path is /v1."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"--url {text!r}: {error}") from None
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment or parts.username:
        raise ConfigError(f"--url {text!r} is no base URL such as http://127.0.0.1:8000/v1 or https://[::1]:8443/v1")
    if re.search(r"[\x00-\x20\x7f-\uffff]", parts.path):
        raise ConfigError(f"--url {text!r}: the path has characters that an URL must write with %")
    secure = parts.scheme == "https"
    return HttpUrl(secure, host, port or (443 if secure else 80), parts.path.rstrip("/") or "/v1")
