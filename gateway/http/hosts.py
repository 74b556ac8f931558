"""Which host names the HTTP API answers to: a page of another site cannot reach it under a name of its own.

A browser lets a page read what its own host name answers. Whoever owns a name can point it at 127.0.0.1 afterwards
(DNS rebinding); then only the Host header tells that the page is foreign. Nobody can rebind an address: those pass."""

import ipaddress
import re
from itertools import count

from msgspec.json import encode
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.http import errors as http_errors
from mesh.config.config_checks import is_loopback
from mesh.config.services import GatewayConfig
from mesh.errors import brief

LOCAL, REASON = "localhost", "UNKNOWN_HOST"
_HEADERS = [
    *((b"content-type", b"application/json"), (b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")),
    *((b"x-error-reason", REASON.encode()), (b"x-should-retry", b"false")),
]
_numbers = count(1)
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]@/]+)(?::[0-9]{0,5})?")


def accepts_any_host(config: GatewayConfig) -> bool:
    """Whether other machines call this gateway, directly or through its sidecar, by names that nobody has listed."""
    return not config.http_hosts and (bool(config.sidecar) or not is_loopback(config.http_address))


class KnownHosts:
    """An ASGI application that refuses calls to hosts that are neither local, nor an address, nor in `names`."""

    def __init__(self, app: ASGIApp, names: tuple[str, ...] = ()) -> None:
        self._app, self._names = app, frozenset(map(_plain, names))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        hosts = [value.decode("latin-1") for name, value in scope.get("headers", ()) if name == b"host"]
        unknown = next((host for host in hosts if not self._knows(host)), None)
        if unknown is None:
            await self._app(scope, receive, send)
            return
        message = (
            f"this gateway does not answer to the host {brief(unknown)!r}; call it by an address or as localhost, or "
            "add the name to the setting gateway.http_hosts"
        )
        content = encode(http_errors.body(421, message, REASON))
        named = (b"x-request-id", b"refused-host-%d" % next(_numbers))
        headers = [*_HEADERS, named, (b"content-length", str(len(content)).encode())]
        await send({"type": "http.response.start", "status": 421, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    def _knows(self, host: str) -> bool:
        match = _HOST.fullmatch(host.strip())
        name = _plain(match[1]) if match else ""
        return name in self._names or name == LOCAL or name.endswith(f".{LOCAL}") or _is_address(name)


def _plain(name: str) -> str:
    return name.lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
