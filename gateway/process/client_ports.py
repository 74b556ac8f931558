"""The ports of clients of one process, as it leaves a gateway whose other processes stay.

HTTP loses nothing: the listening sockets go to another process with the connections in their queues
(gateway/process/listeners.py). gRPC accepts inside its own library, which can neither give a listener away nor take
one. There the port closes first, the calls of connections that came just before get a moment to begin, and then clients
are sent away: their running calls go on, and their next ones connect to another process."""

import asyncio
import ssl

from starlette.types import ASGIApp

from gateway.http.server import HttpServer, serve_http
from gateway.process.leaving import ClientPorts, OwnPorts
from gateway.process.listeners import ListenerExchange
from mesh.config.services import GatewayConfig
from mesh.network.grpc_server import GrpcListening


async def open_http(
    app: ASGIApp, config: GatewayConfig, grpc: GrpcListening, tls: ssl.SSLContext | None
) -> tuple[HttpServer, ClientPorts]:
    """Serve HTTP, with the listener that the last process of this number has handed over, if there was one."""
    process, processes = config.process or 0, config.processes
    shared = processes > 1
    exchange = ListenerExchange(config.http_address, process=process, processes=processes)
    http = await serve_http(
        app,
        config.http_address,
        setting="gateway.http_address",
        limits=config,
        tls=tls,
        shared=shared,
        listener=await exchange.fetch(),
        process=process,
    )
    if not shared:
        return http, PortsOfAlone(http)
    exchange.serve(http)
    return http, SharedPorts(exchange, http, grpc)


class PortsOfAlone(OwnPorts):
    """The ports of a gateway's only process. Each further answer says that its connection ends, so that the pool of
    the client connects elsewhere."""

    def __init__(self, http: HttpServer) -> None:
        self._http = http

    async def hand_over(self, seconds: float) -> bool:
        self._http.end_connections()
        return False


class SharedPorts:
    def __init__(self, exchange: ListenerExchange, http: HttpServer, grpc: GrpcListening) -> None:
        self._exchange = exchange
        self._http = http
        self._grpc = grpc
        self._sending_away: asyncio.Task[None] | None = None

    async def hand_over(self, seconds: float) -> bool:
        """Let another process take new connections; requests have `seconds` to end. False: there is none."""
        self._http.end_connections()
        if not await self._exchange.hand_over():
            return False
        self._http.leave()
        self._sending_away = asyncio.create_task(self._grpc.leave(seconds))
        return True

    @property
    def quiet(self) -> bool:
        """Whether no request is to be expected on the connections that are left."""
        left = self._sending_away is None or self._grpc.sent_away
        return left and self._http.quiet

    async def close(self) -> None:
        await self._exchange.close()
        if self._sending_away is not None:
            self._sending_away.cancel()
            await asyncio.gather(self._sending_away, return_exceptions=True)
