"""The served half of the network: a gRPC server for Attach, Session and Register, with health and reflection.

Each served stream runs in a task of its own, so that a lost peer raises StreamClosed in the service and never cancels
it. close() first lets every stream end, then the server."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import grpc

from mesh.config.config_checks import ConfigError, check_address
from mesh.messages import codec
from mesh.network.grpc_accepting import stop_accepting
from mesh.network.grpc_health import SERVICE, HealthService
from mesh.network.grpc_reflection import reflection_handlers
from mesh.network.grpc_stream import FLUSH_SECONDS, GrpcStream
from mesh.network.interface import Accept, StreamClosed

_log = logging.getLogger(__name__)

AddServices = Callable[[grpc.aio.Server], Sequence[str]]  # adds services to the server and returns their names

HANDSHAKE_SECONDS = 10.0  # a connection whose handshake takes longer is closed; gRPC's own default is two minutes
BEGIN_SECONDS = 0.3  # from the last connection on; a client that has one begins its first call
LIMITS = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))
# Metadata sent ahead of a stream: by it the dialling end knows that the stream is served. A refusal begins with empty
# metadata, and its status may come later.
SERVED = ("baton-served", "1")
OPTIONS = (
    *LIMITS,
    ("grpc.so_reuseport", 0),  # otherwise two servers could share a port unnoticed
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
)


class AddressError(ConfigError):
    """The service cannot listen on this address. The message names the address and its setting."""


class GrpcListening:
    """A server that runs until it is closed."""

    def __init__(
        self, options: Sequence[tuple[str, Any]] = (), interceptors: Sequence[grpc.aio.ServerInterceptor] = ()
    ) -> None:
        """`options` of gRPC override those of this file."""
        self.address = ""
        self.sent_away = False  # clients have been asked to connect elsewhere
        handshake = ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_SECONDS * 1000))
        every = tuple(dict((*OPTIONS, handshake, *options)).items())
        self._server = grpc.aio.server(interceptors=interceptors, options=every)
        self._health = HealthService()
        self._services: list[str] = []
        self._steady: set[str] = set()
        self._streams: set[GrpcStream] = set()
        self._serving: set[asyncio.Task[None]] = set()

    def add(self, service: str, method: str, handler: Any, *, steady: bool = False) -> None:
        """A steady service is healthy for as long as the port is open, whatever the process can do at the moment."""
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        self._services.append(service)
        if steady:
            self._steady.add(service)

    def add_others(self, add: AddServices) -> None:
        self._services.extend(add(self._server))

    async def start(
        self,
        address: str,
        credentials: grpc.ServerCredentials | None,
        setting: str,
        *,
        advertise_host: str = "",
        advertise_port: int = 0,
        serving: bool = True,
    ) -> None:
        """`serving`: the first answer of health checks."""
        reflection = reflection_handlers((*self._services, SERVICE))
        self._server.add_generic_rpc_handlers((self._health.handler(), *reflection))
        self._health.set(("", *self._services), serving)
        self._health.set(self._steady, True)
        port = bind(self._server, address, credentials, setting)
        self.address = f"{advertise_host or address.rpartition(':')[0]}:{advertise_port or port}"
        await self._server.start()

    async def set_serving(self, serving: bool) -> None:
        """Set the answer of health checks."""
        self._health.set(("", *(name for name in self._services if name not in self._steady)), serving)

    async def leave(self, seconds: float) -> None:
        """Take no more connections, and send clients away from those that are open. Calls that run get `seconds`."""
        stop_accepting(int(self.address.rpartition(":")[2]))
        await asyncio.sleep(BEGIN_SECONDS)
        self._health.close()
        self.sent_away = True
        await self._server.stop(grace=seconds)

    async def close(self) -> None:
        self._health.close()
        for stream in tuple(self._streams):
            stream.close()
        await self._server.stop(grace=FLUSH_SECONDS)
        if unfinished := self._serving - {asyncio.current_task()}:
            await asyncio.wait(unfinished, timeout=FLUSH_SECONDS)

    def stream_handler(self, accept: Accept, inbound: codec.Envelope, outbound: codec.Envelope) -> Any:
        async def handle(_requests: Any, context: Any) -> None:
            await context.send_initial_metadata((SERVED,))
            stream = GrpcStream(context.peer(), context, outbound, inbound)
            task = asyncio.create_task(self._serve(stream, accept), name=f"serve {stream.peer}")
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)
            await asyncio.shield(task)  # a lost peer cancels this call, never the service
            await stream.closed()

        return grpc.stream_stream_rpc_method_handler(handle)

    async def _serve(self, stream: GrpcStream, accept: Accept) -> None:
        self._streams.add(stream)
        try:
            await accept(stream)
        except StreamClosed:
            pass
        except Exception:
            _log.exception("serving %s failed; its stream ends", stream.peer)
        finally:
            self._streams.discard(stream)
            stream.close()


def bind(server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None, setting: str) -> int:
    """Bind the server to the address and return the port; AddressError when that fails."""
    try:
        check_address(setting, address)
    except ConfigError as error:
        raise AddressError(str(error)) from None
    try:
        if credentials is None:
            return int(server.add_insecure_port(address))
        return int(server.add_secure_port(address, credentials))
    except RuntimeError as error:
        raise AddressError(
            f"{setting} = {address!r}: cannot listen there; the port is in use or the host is not this machine's. "
            "Choose another, or find the process that holds it with `ss -ltnp`"
        ) from error
