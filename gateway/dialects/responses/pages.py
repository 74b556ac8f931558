"""Pages of stored responses: one by its id, the items before its output, its end in the background, and its removal."""

import asyncio

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from gateway.dialects.common.missing import JSON, missing
from gateway.dialects.common.sse import encode
from gateway.dialects.described.responses import DeletedResponse, InputItems
from gateway.dialects.endpoints.paths import routes_of
from gateway.dialects.guard import admission_of
from gateway.dialects.info import error_page
from gateway.dialects.responses.background import BackgroundResponses
from gateway.dialects.responses.keeping import ResponseKeeping
from gateway.stored.responses import StoredResponse
from gateway.tenants.admission import OPEN
from mesh.errors import BatonError, InvalidRequest, brief

MOST_LISTED, LISTED = 100, 20  # items of one page


class ResponsePages:
    def __init__(self, keeping: ResponseKeeping, background: BackgroundResponses) -> None:
        self._keeping, self._background = keeping, background

    def routes(self) -> list[BaseRoute]:
        return routes_of(
            {
                "GET /v1/responses/{id}": self._one,
                "DELETE /v1/responses/{id}": self._delete,
                "/v1/responses/{id}/cancel": self._cancel,
                "/v1/responses/{id}/input_items": self._items,
            }
        )

    async def _one(self, request: Request) -> Response:
        if request.query_params.get("stream", "false").lower() not in ("false", "0", ""):
            what = "a stored response is not streamed again: ask for it without stream"
            return error_page(InvalidRequest("stream", what))
        try:
            found = await self._keeping.find(*_whose(request))
        except BatonError as error:
            return error_page(error)
        return self._missing(request) if found is None else Response(found.answer, media_type=JSON)

    async def _delete(self, request: Request) -> Response:
        id, owner = _whose(request)
        try:
            if not await self._keeping.delete(id, owner):
                return self._missing(request)
        except BatonError as error:
            return error_page(error)
        self._background.deleted(id, owner)
        return Response(encode(DeletedResponse(id=id, object="response", deleted=True)), media_type=JSON)

    async def _cancel(self, request: Request) -> Response:
        id, owner = _whose(request)
        try:
            found = await self._background.cancel(id, owner)
        except BatonError as error:
            return error_page(error)
        return self._missing(request) if found is None else Response(found, media_type=JSON)

    async def _items(self, request: Request) -> Response:
        query = request.query_params
        try:
            limit, newest_first = _limit(query.get("limit")), _order(query.get("order"))
            found = await self._keeping.find(*_whose(request))
            if found is None:
                return self._missing(request)
            page = await asyncio.to_thread(_page, found, limit, newest_first, query.get("after"))
        except BatonError as error:
            return error_page(error)
        return Response(page, media_type=JSON)

    def _missing(self, request: Request) -> Response:
        return missing(self._keeping.missing(_whose(request)[0]))


def _whose(request: Request) -> tuple[str, str]:
    return str(request.path_params["id"]), admission_of(request.scope, OPEN).tenant


def _page(found: StoredResponse, limit: int, newest_first: bool, after: str | None) -> bytes:
    items = msgspec.json.decode(found.items)
    if newest_first:
        items.reverse()
    if after is not None:
        place = next((at for at, item in enumerate(items) if item.get("id") == after), None)
        if place is None:
            raise InvalidRequest("after", f"after: no item of this response has the id {brief(repr(after))}")
        items = items[place + 1 :]
    shown = items[:limit]
    first, last = (shown[0].get("id"), shown[-1].get("id")) if shown else (None, None)
    more = len(items) > limit
    return encode(InputItems(object="list", data=shown, first_id=first, last_id=last, has_more=more))


def _limit(text: str | None) -> int:
    limit = LISTED if text is None else int(text) if text.isascii() and text.isdigit() and len(text) < 8 else 0
    if not 1 <= limit <= MOST_LISTED:
        raise InvalidRequest("limit", f"limit must be a number from 1 to {MOST_LISTED}")
    return limit


def _order(text: str | None) -> bool:
    if text not in (None, "asc", "desc"):
        raise InvalidRequest("order", "order must be asc or desc")
    return text != "asc"
