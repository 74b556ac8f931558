"""The layer that asks for a key, around every path of the HTTP API that no setting leaves open.

It sees a request's head and never its body: who has no key, no tokens left or too many choices running costs the
gateway no parsing. Behind it stand all endpoints, so a new one needs nothing of its own to be guarded. The pages that
show operations are for operators, whose browser may send the key as a password."""

from collections.abc import Callable, Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.dialects.common.headers import MORE_HEADERS, REQUEST_ID
from gateway.dialects.common.sse import encode
from gateway.dialects.endpoints.paths import is_below, work_at
from gateway.dialects.spoken import spoken_at
from gateway.fairness.client_turns import WHOSE
from gateway.http import errors as http_errors
from gateway.http.writing import connection_of
from gateway.tenants.admission import Admission
from gateway.tenants.credentials import CallerCredentials, key_in, names_in
from gateway.tenants.tenants import Tenants, Work
from mesh.errors import BatonError, Unauthenticated

ADMISSION = "baton.admission"  # key of a scope
READS = ("GET", "HEAD")  # what a path that needs no key is open for


class KeyGuard:
    """An ASGI application: another one, for callers with a key."""

    def __init__(
        self,
        app: ASGIApp,
        tenants: Tenants,
        *,
        open_paths: Sequence[str],
        count_error: Callable[..., None],
    ) -> None:
        self._app = app
        self._tenants = tenants
        self._open = tuple(open_paths)
        self._count_error = count_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (scope["method"] in READS and is_below(scope["path"], self._open)):
            await self._app(scope, receive, send)
            return
        work = work_at(scope["method"], scope["path"])
        try:
            admission = self._tenants.enter(self._credentials(scope, work), work)
        except BatonError as error:
            await self._refuse(error, scope, work, send)
            return
        try:
            WHOSE.set(admission.tenant)
            scope[MORE_HEADERS].extend(admission.headers())
            await self._app({**scope, ADMISSION: admission}, receive, send)
        finally:
            admission.close()

    def _credentials(self, scope: Scope, work: Work) -> CallerCredentials:
        key = key_in(scope["headers"], basic=work is Work.OPERATES)
        if key is not None or not self._tenants.takes_certificates:
            return CallerCredentials(key)
        return CallerCredentials(None, names_in(connection_of(scope).transport.get_extra_info("peercert")))

    async def _refuse(self, error: BatonError, scope: Scope, work: Work, send: Send) -> None:
        self._count_error(error, refused=True)
        if error.http_status >= 429:
            error.details.setdefault(http_errors.SPENT, "0")
        dialect = spoken_at(scope["path"])
        content = encode(dialect.whole(error, scope[REQUEST_ID]))
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        if isinstance(error, Unauthenticated):
            scheme = b"Basic" if work is Work.OPERATES else b"Bearer"
            headers.append((b"www-authenticate", scheme + b' realm="baton"'))
        headers += http_errors.headers(error)
        headers += [(name, scope[REQUEST_ID].encode()) for name in dialect.id_headers]
        await send({"type": "http.response.start", "status": error.http_status, "headers": headers})
        await send({"type": "http.response.body", "body": content})


def admission_of(scope: Scope, otherwise: Admission) -> Admission:
    """The admission that the guard has made; `otherwise` where no guard stands."""
    found: Admission = scope.get(ADMISSION, otherwise)
    return found
