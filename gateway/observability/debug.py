"""`GET /debug/requests` and `GET /debug/requests/{request_id}`: the last requests with their spans, as JSON.

`baton demo`, `baton up --trace`, `baton explain` and `/ui` read them. They show no prompt and no output; the
message of an error is the one that the client got."""

from collections.abc import Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.observability.record import RequestRecord
from gateway.observability.traces import RecentTraces
from mesh.telemetry import SpanRecord

Json = dict[str, Any]
DEFAULT_LIMIT, MOST = 50, 512
MOST_CHARACTERS = 500  # of an error's message


def debug_routes(traces: RecentTraces, wall: Callable[[], float]) -> list[Route]:
    """`wall`: seconds since 1970."""

    async def latest(request: Request) -> Response:
        text = request.query_params.get("limit", str(DEFAULT_LIMIT))
        if not text.isdecimal() or not 1 <= int(text) <= MOST:
            return _json({"error": f"limit is {text!r}; it must be a number from 1 to {MOST}"}, 400)
        return _json({"requests": [summary(record, wall()) for record in traces.latest(int(text))]})

    async def one(request: Request) -> Response:
        request_id = request.path_params["request_id"]
        record = traces.find(request_id)
        if record is None:
            known = "this gateway remembers the last 512 requests; GET /debug/requests lists them"
            return _json({"error": f"no request {request_id!r} here: {known}"}, 404)
        return _json({**summary(record, wall()), "spans": spans_json(traces.spans(record), record.start_seconds)})

    return [
        Route("/debug/requests", latest, methods=["GET"]),
        Route("/debug/requests/{request_id:path}", one, methods=["GET"]),
    ]


def summary(record: RequestRecord, wall_seconds: float) -> Json:
    """`wall_seconds`: the wall clock now."""
    age = record.clock() - record.start_seconds
    return {
        "request_id": record.request_id,
        "trace_id": f"{record.context.trace_id:032x}",
        "model": record.model,
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
    return Response(msgspec.json.encode(content), status, media_type="application/json")
