"""Pages of batches: a new one, all of a tenant, one, and its end before its time."""

import re
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from gateway.batches.lines import URLS
from gateway.batches.records import BatchRecord
from gateway.batches.store import BatchStore
from gateway.batches.work import BatchWork
from gateway.dialects.batches.file_pages import guarded
from gateway.dialects.batches.listing import limit_of, no_such, tenant_of, whose
from gateway.dialects.common.missing import JSON, missing
from gateway.dialects.common.plain_post import AnsweredAtOnce, HttpHost
from gateway.dialects.common.sse import encode
from gateway.dialects.described.batches import BatchPage, BatchRequest
from gateway.dialects.endpoints.paths import routes_of
from gateway.dialects.openai.request import HttpCaller
from gateway.dialects.opening import Opening
from gateway.stored.database import StoreUnusable
from mesh.errors import InvalidRequest, Unavailable, brief

MOST_LISTED, LISTED = 100, 20
_WITHOUT_EFFECT = ("output_expires_after",)  # files have one age
_HOURS = {"h": 1, "d": 24}
_WINDOW = re.compile(r"([1-9]\d{0,3})([hd])")


class BatchPages:
    def __init__(self, host: HttpHost, opening: Opening, store: BatchStore, work: BatchWork) -> None:
        self._host, self._opening, self._store, self._work = host, opening, store, work

    def routes(self) -> list[BaseRoute]:
        return routes_of(
            {
                "GET /v1/batches": guarded(self._listed),
                "/v1/batches/{id}": guarded(self._one),
                "/v1/batches/{id}/cancel": guarded(self._cancel),
                "POST /v1/batches": AnsweredAtOnce(self._host, self._create),
            }
        )

    async def _create(self, raw: bytes, caller: HttpCaller) -> bytes:
        body: BatchRequest = await self._opening.parse(raw, BatchRequest, caller, without_effect=_WITHOUT_EFFECT)
        owner, now = caller.trace.admission.tenant, self._store.clock()
        if body.endpoint not in URLS:
            raise InvalidRequest(
                "endpoint", f"endpoint is {brief(repr(body.endpoint))}; it must be one of {', '.join(URLS)}"
            )
        hours, id = hours_of(body.completion_window), body.input_file_id or ""
        try:
            file = await self._store.file(id, owner)
            if file is None:
                what = f"input_file_id: there is no file {brief(repr(id))}; upload it with POST /v1/files"
                raise InvalidRequest("input_file_id", what)
            if file.purpose != "batch":
                what = f"input_file_id: {file.id} has the purpose {file.purpose}; upload it with the purpose batch"
                raise InvalidRequest("input_file_id", what)
            record = BatchRecord(
                id=self._store.new_id("batch_"),
                endpoint=str(body.endpoint),
                input_file_id=file.id,
                completion_window=str(body.completion_window),
                created_at=int(now),
                expires_at=int(now + hours * 3600),
                metadata=body.metadata,
            )
            await self._store.add_batch(owner, record)
        except StoreUnusable as error:
            raise Unavailable(f"batches cannot be stored now: {error}") from None
        self._work.wake()
        return encode(record)

    async def _listed(self, request: Request) -> Response:
        limit, after = limit_of(request, LISTED, MOST_LISTED), request.query_params.get("after")
        try:
            found, more = await self._store.batches(tenant_of(request), limit=limit, after=after)
        except KeyError:
            raise no_such(after) from None
        first, last = (found[0].id, found[-1].id) if found else (None, None)
        return _json(BatchPage(data=found, first_id=first, last_id=last, has_more=more))

    async def _one(self, request: Request) -> Response:
        id, owner = whose(request)
        found = await self._store.batch(id, owner)
        return _no_batch(id) if found is None else _json(found)

    async def _cancel(self, request: Request) -> Response:
        id, owner = whose(request)

        def cancels(record: BatchRecord) -> None:
            if record.active and record.status != "cancelling":
                record.enter("cancelling", self._store.clock())

        found = await self._store.change(id, owner, cancels)
        if found is None:
            return _no_batch(id)
        if found.status != "cancelling":
            raise InvalidRequest("id", f"the batch {id} is {found.status} and cannot be cancelled any more")
        self._work.wake()
        return _json(found)


def hours_of(window: str | None) -> int:
    """The hours of a `completion_window`, for instance of 24h."""
    found = _WINDOW.fullmatch(window or "")
    if found is None:
        raise InvalidRequest(
            "completion_window", "completion_window must be a number of hours or days such as 24h or 7d"
        )
    return int(found[1]) * _HOURS[found[2]]


def _no_batch(id: str) -> Response:
    return missing(f"there is no batch {brief(repr(id))}, or not any more")


def _json(content: Any) -> Response:
    return Response(encode(content), media_type=JSON)
