"""The interceptor that asks every call between services for the mesh's token (`mesh/network/mesh_token.py`).

It sees a call's metadata and never its message: a stranger gets UNAUTHENTICATED before anything of its call is read.
Health checks and reflection stay open, because container engines and operators' tools ask for them. Refusals are
logged at most once a minute, so that a stranger cannot fill the log."""

import asyncio
import logging
from typing import Any

import grpc

from mesh.network.mesh_token import MeshToken

log = logging.getLogger("baton.mesh")

OPEN_SERVICES = ("/grpc.health.v1.Health/", "/grpc.reflection.")
LOG_SECONDS = 60.0  # shortest time between two lines about refusals
SHOWN_LETTERS = 80  # characters that are shown of a method's name, which the stranger chooses
REFUSAL = (
    "the call shows no token of this mesh: give the calling process the mesh_token_file that the other services have; "
    "a person adds the metadata baton-mesh-token"
)


class TokenGuard(grpc.aio.ServerInterceptor):
    def __init__(self, token: MeshToken) -> None:
        self.refused = 0  # calls since the start
        self._token = token
        self._unlogged = 0
        self._logged_seconds: float | None = None

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        method = handler_call_details.method
        if method.startswith(OPEN_SERVICES) or self._token.accepts(handler_call_details.invocation_metadata):
            return await continuation(handler_call_details)

        async def refuse(_requests: Any, context: Any) -> None:
            self._count(method, context.peer())
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, REFUSAL)

        return grpc.stream_stream_rpc_method_handler(refuse)  # gRPC waits for no message of a stream

    def _count(self, method: str, peer: str) -> None:
        self.refused += 1
        self._unlogged += 1
        now = asyncio.get_running_loop().time()
        if self._logged_seconds is None or now - self._logged_seconds >= LOG_SECONDS:
            log.warning(
                "%d calls without the token of this mesh were refused, the last one to %s from %s: if that process "
                "belongs to the mesh, set its mesh_token_file",
                *(self._unlogged, method[:SHOWN_LETTERS], peer),
            )
            self._unlogged, self._logged_seconds = 0, now
