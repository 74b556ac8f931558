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


def gateway_url(text: str) -> HttpUrl:
    """A gateway by its HTTP address, as other options name it, or by its URL."""
    if "://" in text:
        return parse_url(text, option="--http")
    if not re.fullmatch(r"([^:/]+|\[[^\[\]]+\]):[0-9]{1,5}", text):
        raise ConfigError(f"--http: {text!r} is neither host:port, for instance 127.0.0.1:8000, nor a URL")
    return parse_url(f"http://{text}", option="--http")


def parse_url(text: str, *, option: str = "--url") -> HttpUrl:
    """The base URL of an OpenAI API; without a path its path is /v1. `option`: what gave it, for errors."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"{option} {text!r}: {error}") from None
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment or parts.username:
        raise ConfigError(f"{option} {text!r} is no base URL such as http://127.0.0.1:8000/v1 or https://[::1]:8443/v1")
    if re.search(r"[\x00-\x20\x7f-\uffff]", parts.path):
        raise ConfigError(f"{option} {text!r}: the path has characters that an URL must write with %")
    secure = parts.scheme == "https"
    return HttpUrl(secure, host, port or (443 if secure else 80), parts.path.rstrip("/") or "/v1")
