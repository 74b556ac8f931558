"""The network of a worker of either tier, made from its settings: what it serves on its port, and how it dials."""

from collections.abc import Callable

from mesh.config.worker_config import WorkerConfig
from mesh.network.grpc_network import GrpcNetwork
from mesh.network.grpc_stats import Counts, stats_service
from mesh.network.mesh_token import MeshToken
from mesh.network.tls import TlsFiles


def worker_network(
    tier: str, config: WorkerConfig, token: MeshToken | None, tls: TlsFiles | None, *, counts: Callable[[], Counts]
) -> GrpcNetwork:
    return GrpcNetwork(
        tls=tls,
        token=token,
        sidecar=config.sidecar,
        advertise_host=config.advertise_host,
        advertise_port=config.advertise_port,
        setting=f"{tier}.address",
        also=stats_service(counts),
    )
