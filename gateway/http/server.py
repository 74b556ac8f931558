"""Serves an ASGI application on one address. It runs uvicorn without its signal handlers and without its ticking main
loop, so that an idle front door does nothing at all."""

import asyncio
import contextlib
import logging
import resource
import socket
import ssl
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import uvicorn

from gateway.http.connection import ClientConnection, OpenConnections
from mesh.config_checks import split_address
from mesh.door_config import DoorConfig
from mesh.grpc_network import AddressError

CLOSE_SECONDS = 5  # answers under way get so long when the server closes
HANDSHAKE_SECONDS = 10.0  # a client that takes longer for its TLS handshake is dropped
BACKLOG = 2048  # connections that the system holds until the event loop accepts them
OTHER_FILES = 256  # descriptors that the process needs besides its HTTP connections


class HttpServer:
    def __init__(self, server: "_Server", sockets: list[socket.socket], address: str) -> None:
        self.address = address  # with the port that the system chose if the setting has port 0
        self._server = server
        self._sockets = sockets

    async def close(self) -> None:
        """Stop listening; answers under way get CLOSE_SECONDS."""
        await self._server.shutdown(self._sockets)
        for each in self._sockets:
            each.close()


async def serve_http(
    app: Any,
    address: str,
    *,
    setting: str = "http_address",
    limits: DoorConfig | None = None,
    tls: ssl.SSLContext | None = None,
    shared: bool = False,
) -> HttpServer:
    """Raises AddressError when the server cannot listen at the address. `shared`: other processes listen there too."""
    host, port = split_address(address)
    limits = limits or DoorConfig()
    try:
        family, kind, protocol, _, where = (
            await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        )[0]
        listener = socket.socket(family, kind, protocol)
        with contextlib.ExitStack() as undo:
            undo.callback(listener.close)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind(where)
            undo.pop_all()
    except (OSError, ValueError) as error:
        raise AddressError(
            f"{setting} = {address!r}: cannot listen there ({error}); the port is in use or the host is not an "
            "address of this machine. Choose another one, or find the process that holds the port with `ss -ltnp`"
        ) from error
    allow_files(limits.connections + OTHER_FILES)
    config = uvicorn.Config(
        app,
        http=ClientConnection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        date_header=False,  # uvicorn refreshes the date in its main loop, which does not run here
        server_header=False,
        timeout_graceful_shutdown=CLOSE_SECONDS,
    )
    config.load()
    logging.getLogger("uvicorn.error").setLevel(logging.INFO)  # else it makes a record of each connection, for nobody
    connections = OpenConnections(limits)
    server = _Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.listen(listener, partial(ClientConnection, open=connections), tls)
    return HttpServer(server, [listener], f"{address.rpartition(':')[0]}:{listener.getsockname()[1]}")


def allow_files(wanted: int) -> None:
    """Raise the number of descriptors that the process may open, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))


class _Server(uvicorn.Server):
    async def listen(
        self, listener: socket.socket, connect: Callable[..., ClientConnection], tls: ssl.SSLContext | None
    ) -> None:
        """Serve as uvicorn's own `startup` does, with a time limit for TLS handshakes."""

        def protocol() -> ClientConnection:
            return connect(config=self.config, server_state=self.server_state, app_state={})

        serving = await asyncio.get_running_loop().create_server(
            protocol,
            sock=listener,
            ssl=tls,
            backlog=BACKLOG,
            ssl_handshake_timeout=HANDSHAKE_SECONDS if tls is not None else None,
        )
        self.servers = [serving]
        self.started = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
