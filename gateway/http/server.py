"""Serves an ASGI application on one address. It runs uvicorn without its signal handlers and without its ticking main
loop, so that an idle front door does nothing at all."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from functools import partial
from typing import Any

import uvicorn

from gateway.http.connection import ClientConnection
from mesh.config import split_address
from mesh.grpc_network import AddressError

READER_SECONDS = 60.0  # a client that takes nothing for so long is disconnected
CLOSE_SECONDS = 5  # answers under way get so long when the server closes


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
    app: Any, address: str, *, setting: str = "http_address", reader_seconds: float = READER_SECONDS
) -> HttpServer:
    """Raises AddressError when the server cannot listen at the address."""
    host, port = split_address(address)
    try:
        family, kind, protocol, _, where = (
            await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        )[0]
        listener = socket.socket(family, kind, protocol)
        with contextlib.ExitStack() as undo:
            undo.callback(listener.close)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(where)
            undo.pop_all()
    except (OSError, ValueError) as error:
        raise AddressError(
            f"{setting} = {address!r}: cannot listen there ({error}); the port is in use or the host is not an "
            "address of this machine. Choose another one, or find the process that holds the port with `ss -ltnp`"
        ) from error
    config = uvicorn.Config(
        app,
        http=partial(ClientConnection, reader_seconds=reader_seconds),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        date_header=False,  # uvicorn refreshes the date in its main loop, which does not run here
        server_header=False,
        timeout_graceful_shutdown=CLOSE_SECONDS,
    )
    config.load()
    server = _Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup(sockets=[listener])
    return HttpServer(server, [listener], f"{address.rpartition(':')[0]}:{listener.getsockname()[1]}")


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
