"""`GET /metrics`: the metrics of the whole mesh as text.

A large mesh has thousands of lines. The page is written piece by piece, and between two pieces the event loop serves
tokens; so no request waits for a scrape."""

import asyncio
import time
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.observability.export import MeshCollector
from gateway.observability.text import CLASSIC, OPEN, head, lines, wants_openmetrics

SLICE_SECONDS = 0.001  # time for which writing may hold the event loop


async def write_page(
    collector: MeshCollector, *, openmetrics: bool, wall_offset: float, slice_seconds: float = SLICE_SECONDS
) -> bytes:
    """`wall_offset` turns the event loop's clock into Unix time."""
    parts = list[str]()
    began = time.perf_counter()
    for spec, series in collector.collect():
        parts.append(head(spec, openmetrics=openmetrics))
        for text in lines(spec, series, wall_offset=wall_offset if openmetrics else None):
            parts.append(text)
            if time.perf_counter() - began > slice_seconds:
                await asyncio.sleep(0)
                began = time.perf_counter()
    if openmetrics:
        parts.append("# EOF\n")
    return "".join(parts).encode()


def metrics_routes(collector: MeshCollector, *, wall: Callable[[], float] = time.time) -> list[BaseRoute]:
    """`/metrics`, and the same with a slash behind it; both answer without a redirect."""

    async def metrics(request: Request) -> Response:
        openmetrics = wants_openmetrics(request.headers.get("accept", ""))
        offset = wall() - asyncio.get_running_loop().time()
        page = await write_page(collector, openmetrics=openmetrics, wall_offset=offset)
        return Response(page, headers={"content-type": OPEN if openmetrics else CLASSIC})

    return [Route(path, metrics, methods=["GET"]) for path in ("/metrics", "/metrics/")]
