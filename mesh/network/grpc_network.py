"""The real network: streams of messages over grpc.aio, one connection per stream, so that a peer's death ends it.

It implements mesh.network.interface.Network: it serves Attach, Session and Register, and dials them. With TLS files
both ends of every connection show a certificate (`mesh/network/tls.py`); with a token every call shows it
(`mesh/network/mesh_token.py`). With a sidecar every dial goes to this process's own Envoy, on loopback and in plain
text; Envoy chooses the peer by the authority. Bytes become messages here and nowhere else. An idle stream waits for
events only and costs nothing."""

import asyncio
import socket
from typing import Any

import grpc

from baton.kv.v1 import kv_pb2
from baton.worker.v1 import worker_pb2
from mesh.config.config_checks import split_address
from mesh.messages import codec
from mesh.messages.reports import Register
from mesh.network.envelopes import ENVELOPES
from mesh.network.grpc_server import LIMITS, SERVED, AddressError, AddServices, GrpcListening
from mesh.network.grpc_stream import GrpcStream
from mesh.network.interface import Accept, Channel, OnRegister, Stream, StreamClosed
from mesh.network.mesh_token import MeshToken
from mesh.network.sidecar_advice import UNKNOWN_PEER, with_sidecar_advice
from mesh.network.tls import TlsFiles, open_channel
from mesh.network.tls_advice import with_advice
from mesh.network.token_guard import TokenGuard

__all__ = ["AddServices", "AddressError", "GrpcListening", "GrpcNetwork"]

_REGISTRY = worker_pb2.DESCRIPTOR.services_by_name["RegistryService"].full_name
_ATTACH = worker_pb2.DESCRIPTOR.services_by_name["WorkerService"].full_name
_SESSION = kv_pb2.DESCRIPTOR.services_by_name["KvService"].full_name
# Service, method, envelope that the dialling end sends, envelope that it receives.
_CHANNELS = {
    Channel.ATTACH: (_ATTACH, "Attach", *ENVELOPES[Channel.ATTACH]),
    Channel.KV: (_SESSION, "Session", *ENVELOPES[Channel.KV]),
}
_OPTIONS = (
    *LIMITS,
    (
        "grpc.use_local_subchannel_pool",
        1,
    ),  # each dial gets a connection of its own, without the back-off of an earlier one
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.keepalive_time_ms", 20_000),  # leases notice earlier; this closes sockets to hosts that vanished
    ("grpc.keepalive_timeout_ms", 10_000),
)
_DECIDED = (
    grpc.ChannelConnectivity.READY,
    grpc.ChannelConnectivity.TRANSIENT_FAILURE,
    grpc.ChannelConnectivity.SHUTDOWN,
)
_BROKEN = (grpc.RpcError, asyncio.CancelledError, asyncio.InvalidStateError, TimeoutError, OSError)


class GrpcNetwork:
    """Without TLS files it speaks plain text: for one host, or under a network that encrypts by itself."""

    def __init__(
        self,
        *,
        tls: TlsFiles | None = None,  # both ends of every connection show a certificate of the CA
        token: MeshToken | None = None,  # every call shows it, and is asked for it
        sidecar: str = "",  # address of the Envoy that takes all dials and speaks TLS in place of this process
        advertise_host: str = "",  # what others dial instead of the host that this process listens on
        advertise_port: int = 0,  # and instead of its port
        dial_seconds: float = 5.0,
        setting: str = "listen",  # named in errors about the address
        also: AddServices | None = None,  # served on the same port
    ) -> None:
        self._tls = None if sidecar else tls
        self._token = token
        self._sidecar = sidecar
        self._advertise_host, self._advertise_port = advertise_host, advertise_port
        self._dial_seconds = dial_seconds
        self._setting = setting
        self._also = also

    async def listen(
        self, address: str, accept: dict[Channel, Accept], on_register: OnRegister | None = None
    ) -> GrpcListening:
        listening = GrpcListening(interceptors=[TokenGuard(self._token)] if self._token else ())
        for channel, serve in accept.items():
            service, method, inbound, outbound = _CHANNELS[channel]
            listening.add(service, method, listening.stream_handler(serve, inbound, outbound))
        if on_register is not None:
            handler: Any = grpc.unary_unary_rpc_method_handler(_registrar(on_register))
            listening.add(_REGISTRY, "Register", handler, steady=True)  # a gateway without workers must take some
        if self._also is not None:
            listening.add_others(self._also)
        credentials = self._tls.server_credentials() if self._tls else None
        await listening.start(
            address,
            credentials,
            self._setting,
            advertise_host=self._advertise_host,
            advertise_port=self._advertise_port,
        )
        return listening

    async def dial(self, address: str, channel: Channel) -> Stream:
        service, method, outbound, inbound = _CHANNELS[channel]
        connection = self._connect(address)
        try:
            async with asyncio.timeout(self._dial_seconds):
                await _ready(connection)
                open_stream: Any = connection.stream_stream(f"/{service}/{method}")
                call = open_stream(metadata=self._shown())
                greeted = SERVED in tuple(await call.initial_metadata())
                # A call without that metadata was refused, or is over already: then gRPC may have dropped the metadata.
                if not greeted and await call.code() is not grpc.StatusCode.OK:
                    raise StreamClosed(f"{address}: {await self._refusal(call, service)}")
        except BaseException as error:
            await connection.close()
            if isinstance(error, _BROKEN) and not _cancelled():
                raise StreamClosed(f"{address}: {self._why(error)}") from error
            raise
        return GrpcStream(address, call, outbound, inbound, connection=connection)

    async def resolve(self, gateway: str) -> tuple[str, ...]:
        """A name may stand for several gateways, as a headless Service of Kubernetes does. With TLS an address can take
        its name's place only if `tls_name` says what its certificate carries. A sidecar knows the name only, and takes
        another of its gateways from one connection to the next: the name is then repeated."""
        if self._tls is not None and not self._tls.name:
            return (gateway,)
        addresses = await addresses_of(gateway)
        if len(addresses) < 2:
            return (gateway,)
        return (gateway,) * len(addresses) if self._sidecar else addresses

    async def register(self, gateway: str, message: Register) -> None:
        connection = self._connect(gateway)
        try:
            async with asyncio.timeout(self._dial_seconds):
                await _ready(connection)
                register: Any = connection.unary_unary(f"/{_REGISTRY}/Register")
                await register(codec.encode_register(message), metadata=self._shown())
        except _BROKEN as error:
            if _cancelled():
                raise
            raise StreamClosed(f"{gateway}: {self._why(error)}") from error
        finally:
            await connection.close()

    def _shown(self) -> tuple[tuple[str, str], ...]:
        """The metadata of every call to another service."""
        return self._token.metadata if self._token else ()

    def _connect(self, address: str) -> grpc.aio.Channel:
        if self._sidecar:
            return open_channel(self._sidecar, None, (*_OPTIONS, ("grpc.default_authority", address)))
        return open_channel(address, self._tls, _OPTIONS)

    async def _refusal(self, call: Any, service: str) -> str:
        code, details = await call.code(), await call.details()
        if code is grpc.StatusCode.UNIMPLEMENTED and not (self._sidecar and UNKNOWN_PEER in (details or "")):
            return f"a process that does not serve {service} answers there ({details})"
        return f"{code.name}: {self._advised(details)}"

    def _why(self, error: BaseException) -> str:
        if isinstance(error, grpc.aio.AioRpcError):
            return f"{error.code().name}: {self._advised(error.details())}"
        return str(error) or "no answer in time"

    def _advised(self, details: str | None) -> str:
        if self._sidecar:
            return with_sidecar_advice(details or "no reason", self._sidecar)
        return with_advice(details or "no reason", tls=self._tls is not None, name=self._tls.name if self._tls else "")


async def addresses_of(gateway: str) -> tuple[str, ...]:
    """host:port for each address of the name, of one family, so that no gateway counts twice; empty: unknown."""
    host, port = split_address(gateway)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return ()  # the call that follows says what is wrong
    hosts = {family: sorted({where[0] for kind, *_, where in found if kind == family}) for family, *_ in found}
    if of_version_4 := hosts.get(socket.AF_INET):
        return tuple(f"{each}:{port}" for each in of_version_4)
    return tuple(f"[{each}]:{port}" for each in hosts.get(socket.AF_INET6, ()))


def _registrar(on_register: OnRegister) -> Any:
    async def handle(raw: bytes, context: Any) -> bytes:
        try:
            message = codec.decode_register(raw)
        except codec.CodecError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        on_register(message)
        answer: bytes = worker_pb2.RegisterResponse().SerializeToString()
        return answer

    return handle


async def _ready(connection: grpc.aio.Channel) -> None:
    """Returns when the channel is connected or its first try failed; then the next call fails with gRPC's reason."""
    state = connection.get_state(try_to_connect=True)
    while state not in _DECIDED:
        await connection.wait_for_state_change(state)
        state = connection.get_state(try_to_connect=True)


def _cancelled() -> bool:
    """Was this task cancelled? A call that breaks raises the same exception."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
