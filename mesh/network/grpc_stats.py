"""Serves a worker's counts since its start, on the port on which it serves Attach.

`baton verify`, benchmarks and fault tests read it. No step of a request's life depends on it, and counting costs
nothing until a client asks."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc

from baton.worker.v1 import worker_pb2, worker_pb2_grpc
from mesh.network.grpc_server import AddServices
from mesh.network.mesh_token import MeshToken
from mesh.network.tls import TlsFiles, open_channel

Counts = Mapping[str, int]

_WORKER = worker_pb2.DESCRIPTOR.services_by_name["WorkerService"].full_name


def stats_service(counts: Callable[[], Counts]) -> AddServices:
    """The Stats service, for the `also` argument of GrpcNetwork: the worker serves it beside its streams."""

    async def stats(_request: worker_pb2.StatsRequest, _context: Any) -> worker_pb2.StatsResponse:
        return worker_pb2.StatsResponse(counts=counts())

    def add(server: grpc.aio.Server) -> Sequence[str]:
        handler = grpc.unary_unary_rpc_method_handler(
            stats,
            request_deserializer=worker_pb2.StatsRequest.FromString,
            response_serializer=worker_pb2.StatsResponse.SerializeToString,
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_WORKER, {"Stats": handler}),))
        return ()  # GrpcNetwork already announces the service's name, together with Attach

    return add


async def read_stats(
    address: str, *, tls: TlsFiles | None = None, token: MeshToken | None = None, timeout_seconds: float = 5.0
) -> dict[str, int]:
    """Read the counts of the worker at this address; raises grpc.aio.AioRpcError when it does not answer."""
    async with open_channel(address, tls) as channel:
        stub = worker_pb2_grpc.WorkerServiceStub(channel)
        shown = token.metadata if token else ()
        answer = await stub.Stats(worker_pb2.StatsRequest(), timeout=timeout_seconds, metadata=shown)
    return dict(answer.counts)
