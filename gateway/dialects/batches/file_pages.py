"""Pages of files: all of a tenant, one, its content, and its removal."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute

from gateway.batches.store import BatchStore
from gateway.dialects.batches.listing import limit_of, newest_first, no_such, tenant_of, whose
from gateway.dialects.batches.upload import FileUpload
from gateway.dialects.common.missing import JSON, missing
from gateway.dialects.common.plain_post import HttpHost
from gateway.dialects.common.sse import encode
from gateway.dialects.described.batches import DeletedFile, FilePage
from gateway.dialects.endpoints.paths import routes_of
from gateway.dialects.info import error_page
from gateway.stored.database import StoreUnusable
from mesh.errors import BatonError, Unavailable, brief

MOST_LISTED = 10_000
BYTES = "application/octet-stream"
Handler = Callable[[Request], Awaitable[Response]]


class FilePages:
    def __init__(self, host: HttpHost, store: BatchStore) -> None:
        self._host, self._store = host, store

    def routes(self) -> list[BaseRoute]:
        return routes_of(
            {
                "GET /v1/files": guarded(self._listed),
                "GET /v1/files/{id}": guarded(self._one),
                "DELETE /v1/files/{id}": guarded(self._delete),
                "/v1/files/{id}/content": guarded(self._content),
                "POST /v1/files": FileUpload(self._host, self._store),
            }
        )

    async def _listed(self, request: Request) -> Response:
        query, after = request.query_params, request.query_params.get("after")
        limit, newest = limit_of(request, MOST_LISTED, MOST_LISTED), newest_first(request)
        try:
            found, more = await self._store.files(
                tenant_of(request), purpose=query.get("purpose"), limit=limit, after=after, newest_first=newest
            )
        except KeyError:
            raise no_such(after) from None
        first, last = (found[0].id, found[-1].id) if found else (None, None)
        return _json(FilePage(data=found, first_id=first, last_id=last, has_more=more))

    async def _one(self, request: Request) -> Response:
        id, owner = whose(request)
        found = await self._store.file(id, owner)
        return _no_file(id) if found is None else _json(found)

    async def _delete(self, request: Request) -> Response:
        id, owner = whose(request)
        return _json(DeletedFile(id=id)) if await self._store.delete_file(id, owner) else _no_file(id)

    async def _content(self, request: Request) -> Response:
        id, owner = whose(request)
        found, path = await self._store.file(id, owner), self._store.path(id, owner)
        if found is None or not path.exists():
            return _no_file(id)
        return FileResponse(path, media_type=BYTES, filename=found.filename)


def guarded(handler: Handler) -> Handler:
    """The handler, whose errors are ordinary answers."""

    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except StoreUnusable as error:
            return error_page(Unavailable(f"files cannot be read now: {error}"))
        except BatonError as error:
            return error_page(error)

    return handle


def _no_file(id: str) -> Response:
    return missing(f"there is no file {brief(repr(id))}, or not any more")


def _json(content: object) -> Response:
    return Response(encode(content), media_type=JSON)
