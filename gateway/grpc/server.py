"""The port of the gRPC API's clients. Workers register on another port, which clients have no reason to reach.

A message larger than the limit is refused from its length alone, before it is read: parsing runs in one piece, and the
limit keeps that piece short. A connection that stays silent is asked for a sign of life and closed without one, so a
client whose host vanished holds no decode slot."""

from collections.abc import Sequence
from typing import Any

from mesh.config.services import GatewayConfig
from mesh.network.grpc_network import AddServices
from mesh.network.grpc_server import GrpcListening
from mesh.network.tls import tls_files

PING_MS, PONG_MS = 20_000, 10_000


async def serve_grpc(
    config: GatewayConfig,
    add: AddServices,
    *,
    serving: bool = True,
    guards: Sequence[Any] = (),
) -> GrpcListening:
    """Serve until it is closed. `serving`: the first answer of health checks. `guards` are interceptors."""
    listening = GrpcListening(
        (
            ("grpc.max_receive_message_length", config.grpc_message_bytes),
            ("grpc.max_concurrent_streams", config.grpc_streams),
            ("grpc.keepalive_time_ms", PING_MS),
            ("grpc.keepalive_timeout_ms", PONG_MS),
            ("grpc.so_reuseport", int(config.processes > 1)),
        ),
        interceptors=guards,
    )
    listening.add_others(add)
    tls = None if config.sidecar else tls_files(config)
    credentials = tls.server_credentials() if tls else None
    await listening.start(config.grpc_address, credentials, "gateway.grpc_address", serving=serving)
    return listening
