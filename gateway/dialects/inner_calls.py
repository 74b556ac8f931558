"""Requests that the gateway sends itself, for a client that does not wait: responses in the background, and batches.

They take the same way as a client's from its connection on, and count for the tenant whose they are."""

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.dialects.common.cors import Cors
from gateway.dialects.common.headers import CommonHeaders
from gateway.dialects.guard import ADMISSION
from gateway.fairness.client_turns import WHOSE
from gateway.http.in_process_call import InProcessAnswer, in_process_call
from gateway.http.open_connections import OpenConnections
from gateway.tenants.tenants import Tenants, Work
from mesh.config.door_config import DoorConfig

_HEADERS = ((b"host", b"localhost"), (b"content-type", b"application/json"))


class InnerCalls:
    def __init__(self, app: ASGIApp, tenants: Tenants | None, limits: DoorConfig) -> None:
        """`app`: the endpoints, which ask for no key."""
        self._app, self._tenants = app, tenants
        self._connections = OpenConnections(limits)
        self._no_site = Cors(())

    async def post(self, path: str, body: bytes, *, owner: str, request_id: str) -> InProcessAnswer:
        """`owner`: the tenant; empty where the gateway knows none. BatonError: the tenant may run nothing now."""
        admission = None if self._tenants is None else self._tenants.enter_as(owner, Work.GENERATES)

        async def as_owner(scope: Scope, receive: Receive, send: Send) -> None:
            WHOSE.set(owner)
            more = {} if admission is None else {ADMISSION: admission}
            await self._app({**scope, **more}, receive, send)

        headers = (*_HEADERS, (b"x-request-id", request_id.encode()))
        app = CommonHeaders(as_owner, draw_id=lambda: request_id, cors=self._no_site)
        try:
            return await in_process_call(app, self._connections, "POST", path, headers, body)
        finally:
            if admission is not None:
                admission.close()
