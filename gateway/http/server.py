"""Serves an ASGI application on one address. An idle front door does nothing at all."""

import asyncio
import contextlib
import resource
import socket
import ssl
from typing import Any

from gateway.http.connection import KEEP_ALIVE_SECONDS, ClientConnection
from gateway.http.open_connections import OpenConnections
from mesh.config.config_checks import split_address
from mesh.config.door_config import DoorConfig
from mesh.network.grpc_network import AddressError

CLOSE_SECONDS = 5  # time that answers under way have when the server closes
HANDSHAKE_SECONDS = 10.0  # a client that takes longer for its TLS handshake is dropped
BACKLOG = 2048  # connections that the system holds until the event loop accepts them
IDLE_SECONDS = KEEP_ALIVE_SECONDS + 0.5  # time for which a server that leaves expects requests on its connections
SETTLE_SECONDS = 0.5  # without a connection it waits for those that it has accepted just before
PASSES = 3  # passes of asyncio's event loop, in which an accepted connection begins
OTHER_FILES = 256  # descriptors that the process needs besides its HTTP connections


class HttpServer:
    """Accepts from its own listener, and from those of processes that have left."""

    def __init__(
        self,
        app: Any,
        open: OpenConnections,
        *,
        tls: ssl.SSLContext | None,
        address: str,
        process: int,
        listener: socket.socket,
    ) -> None:
        self.address = address  # with the port that the system chose if the setting has port 0
        self._app = app
        self._open = open
        self._tls = tls
        self._listeners = {process: listener}
        self._accepting: dict[int, tuple[asyncio.Server, socket.socket]] = {}
        self._left_seconds: float | None = None  # when the server began to leave

    def listeners(self) -> dict[int, socket.socket]:
        """Listening sockets, by the number of the process that each belongs to."""
        return dict(self._listeners)

    async def start(self) -> None:
        for number, listener in self._listeners.items():
            await self._accept(number, listener)

    async def adopt(self, number: int, listener: socket.socket) -> None:
        """Accept from this listener too."""
        if number in self._listeners:
            listener.close()
            return
        self._listeners[number] = listener
        await self._accept(number, listener)

    async def _accept(self, number: int, listener: socket.socket) -> None:
        """An event loop closes the socket that it accepts from, so it gets a copy: the listener itself can be handed to
        another process."""
        accepting = listener.dup()
        serving = await asyncio.get_running_loop().create_server(
            lambda: ClientConnection(self._app, self._open),
            sock=accepting,
            ssl=self._tls,
            backlog=BACKLOG,
            ssl_handshake_timeout=HANDSHAKE_SECONDS if self._tls is not None else None,
        )
        self._accepting[number] = serving, accepting

    async def release(self, number: int) -> None:
        """Stop accepting from a listener that another process has."""
        listener = self._listeners.pop(number, None)
        if listener is None:
            return
        serving, accepting = self._accepting.pop(number)
        # asyncio's loop drops connections that it has accepted and not begun when the server closes: it accepts no more
        # and begins them first. uvloop begins them at once, and has no reader here.
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop().remove_reader(accepting)
        for _ in range(PASSES):
            await asyncio.sleep(0)
        serving.close()
        listener.close()

    def leave(self) -> None:
        """Other processes take new connections. Requests on those that are open are served, and end them."""
        self._left_seconds = asyncio.get_running_loop().time()
        self.end_connections()

    def end_connections(self) -> None:
        """The answer to each further request ends its connection."""
        self._open.leaving = True

    @property
    def quiet(self) -> bool:
        """Whether a server that leaves may close: no request is under way, and none is to be expected."""
        if self._left_seconds is None:
            return True
        seconds = asyncio.get_running_loop().time() - self._left_seconds
        if self._open.count == 0:  # a connection is counted behind its TLS handshake
            return seconds > SETTLE_SECONDS
        return self._open.all_idle and seconds > IDLE_SECONDS

    async def close(self) -> None:
        """Stop listening; answers under way get CLOSE_SECONDS."""
        for serving, _ in self._accepting.values():
            serving.close()
        for each in self._listeners.values():
            each.close()
        for connection in list(self._open.every):
            connection.shut()
        if self._open.tasks:
            await asyncio.wait(list(self._open.tasks), timeout=CLOSE_SECONDS)
        for task in list(self._open.tasks):
            task.cancel()
        for connection in list(self._open.every):
            connection.shut() if self._open.tasks else connection.drop()
        await asyncio.sleep(0)


async def serve_http(
    app: Any,
    address: str,
    *,
    setting: str = "http_address",
    limits: DoorConfig | None = None,
    tls: ssl.SSLContext | None = None,
    shared: bool = False,
    listener: socket.socket | None = None,
    process: int = 0,
) -> HttpServer:
    """Raises AddressError when the server cannot listen at the address. `shared`: other processes listen there too.
    `listener`: one of this address that exists already. `process`: number of this process among those that share it."""
    limits = limits or DoorConfig()
    listener = listener or await _bound(address, setting, shared=shared)
    allow_files(limits.connections + OTHER_FILES)
    where = f"{address.rpartition(':')[0]}:{listener.getsockname()[1]}"
    connections = OpenConnections(limits)
    server = HttpServer(app, connections, tls=tls, address=where, process=process, listener=listener)
    await server.start()
    return server


async def _bound(address: str, setting: str, *, shared: bool) -> socket.socket:
    try:
        host, port = split_address(address)
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
    return listener


def allow_files(wanted: int) -> None:
    """Raise the number of descriptors that the process may open, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
