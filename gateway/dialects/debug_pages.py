"""`GET /debug/requests` and `GET /debug/requests/{request_id}`: the last requests with their spans, as JSON.

`baton demo`, `baton up --trace`, `baton explain` and `/ui` read them. They show no prompt and no output; the
message of an error is the one that the client got."""

import re
from collections.abc import Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from gateway.dialects.endpoints.paths import routes_of
from gateway.dialects.endpoints.table import DEFAULT_LIMIT, MOST
from gateway.http import errors as http_errors
from gateway.tracing.record import RequestRecord
from gateway.tracing.traces import RecentTraces
from mesh.errors import brief
from mesh.telemetry.spans import SpanRecord

Json = dict[str, Any]
MOST_CHARACTERS = 500  # characters that are shown of an error's message


def debug_routes(traces: RecentTraces, wall: Callable[[], float]) -> list[BaseRoute]:
    """`wall`: seconds since 1970. A request is named by its id, the id in its answer (`chatcmpl-…`) or its trace id;
    `?trace_id=` picks one of several."""

    async def latest(request: Request) -> Response:
        text = request.query_params.get("limit", str(DEFAULT_LIMIT))
        if not re.fullmatch("[0-9]{1,4}", text) or not 1 <= int(text) <= MOST:
            message = f"limit is {brief(text)!r}; it must be a whole number from 1 to {MOST}"
            return _json(http_errors.body(400, message, "INVALID_REQUEST", "limit"), 400)
        return _json({"requests": [summary(record, wall()) for record in traces.latest(int(text))]})

    async def one(request: Request) -> Response:
        request_id, trace_id = request.path_params["request_id"], request.query_params.get("trace_id", "").lower()
        found = [one for one in named(traces.latest(MOST), request_id) if trace_id in ("", trace_of(one))]
        if not found:
            known = f"this gateway remembers the last {MOST} requests; GET /debug/requests lists them"
            message = f"no request {brief(request_id)!r} here: {known}"
            return _json(http_errors.body(404, message, "UNKNOWN_REQUEST", "request_id"), 404)
        record = found[0]
        same = [trace_of(one) for one in traces.latest(MOST) if one.request_id == record.request_id]
        about = {**summary(record, wall()), "same_id": same if len(same) > 1 else []}
        return _json({**about, "spans": spans_json(traces.spans(record), record.start_seconds)})

    return routes_of({"/debug/requests": latest, "/debug/requests/{request_id:path}": one})


def named(records: list[RequestRecord], name: str) -> list[RequestRecord]:
    """The records of this request id, else of the id that answers carry, else of this trace; in the order given."""
    within = re.fullmatch(r"(?:chatcmpl-|cmpl-|resp_|msg_)(.+)", name)
    for wanted in (name, within[1] if within else name):
        if found := [record for record in records if record.request_id == wanted]:
            return found
    return [record for record in records if trace_of(record) == name.lower()]


def trace_of(record: RequestRecord) -> str:
    return f"{record.context.trace_id:032x}"


def summary(record: RequestRecord, wall_seconds: float) -> Json:
    """`wall_seconds`: the wall clock now."""
    age = record.clock() - record.start_seconds
    return {
        "request_id": record.request_id,
        "trace_id": trace_of(record),
        "model": record.model,
        "tenant": record.admission.tenant,
        "path": record.path,
        "status": record.status,
        "error": record.error,
        "message": record.message[:MOST_CHARACTERS],
        "http_status": record.http_status,
        "started_at": wall_seconds - age,
        "seconds": record.seconds,
        "prompt_tokens": record.prompt_tokens,
        "completion_tokens": record.completion_tokens,
        "ttft_seconds": record.ttft_seconds,
        "complete": record.complete,
    }


def spans_json(spans: list[SpanRecord], start_seconds: float) -> list[Json]:
    return [
        {
            "service": span.service,
            "name": span.name,
            "span_id": f"{span.span_id:016x}",
            "parent_id": f"{span.parent_id:016x}" if span.parent_id else "",
            "start_ms": (span.start_seconds - start_seconds) * 1000,
            "duration_ms": (span.end_seconds - span.start_seconds) * 1000,
            "attributes": dict(span.attributes),
            "error": span.error,
            "events": [
                {
                    "name": event.name,
                    "at_ms": (event.seconds - start_seconds) * 1000,
                    "attributes": dict(event.attributes),
                }
                for event in span.events
            ],
            "links": [{"trace_id": f"{link.trace_id:032x}", "span_id": f"{link.span_id:016x}"} for link in span.links],
        }
        for span in spans
    ]


def _json(content: Json, status: int = 200) -> Response:
    head = http_errors.page_headers(content) if status >= 400 else None
    return Response(msgspec.json.encode(content), status, head, media_type="application/json")
