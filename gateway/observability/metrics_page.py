"""`GET /metrics`: the metrics of the whole mesh as text.

A large mesh has thousands of lines. The page is written piece by piece, and between two pieces the event loop serves
tokens; so no request waits for a scrape. One page is written at a time, however many ask."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from gateway.dialects.endpoints.paths import routes_of
from gateway.observability.export import MeshCollector
from gateway.observability.metric_spec import MetricSpec
from gateway.observability.text import CLASSIC, OPEN, MetricSeries, head, lines, wants_openmetrics

SLICE_SECONDS = 0.001  # time for which writing may hold the event loop
SHARED_SECONDS = 1.0  # a page is as new as this at least


async def write_page(
    collector: MeshCollector, *, openmetrics: bool, wall_offset: float, slice_seconds: float = SLICE_SECONDS
) -> bytes:
    """`wall_offset` turns the event loop's clock into Unix time."""
    parts = list[str]()
    clock = asyncio.get_running_loop().time
    began = clock()
    for part in collector.collect():
        for text in ("",) if part is None else pieces(*part, wall_offset if openmetrics else None):
            parts.append(text)
            if clock() - began > slice_seconds:
                await asyncio.sleep(0)
                began = clock()
    if openmetrics:
        parts.append("# EOF\n")
    return "".join(parts).encode()


class SharedPages:
    """The last page of each format; everyone who asks within `seconds` gets the same one."""

    def __init__(self, write: Callable[[bool], Awaitable[bytes]], seconds: float = SHARED_SECONDS) -> None:
        self._write = write
        self._seconds = seconds
        self._one_at_a_time = asyncio.Lock()
        self._pages: dict[bool, tuple[float, bytes]] = {}  # by format: when its writing began, and the page

    async def get(self, openmetrics: bool) -> bytes:
        asked = asyncio.get_running_loop().time()
        async with self._one_at_a_time:
            began, page = self._pages.get(openmetrics, (0.0, b""))
            if not page or asked - began >= self._seconds:
                began = asyncio.get_running_loop().time()
                page = await self._write(openmetrics)
                self._pages[openmetrics] = began, page
            return page


def pieces(spec: MetricSpec, series: Iterable[MetricSeries], wall_offset: float | None) -> Iterator[str]:
    yield head(spec, openmetrics=wall_offset is not None)
    yield from lines(spec, series, wall_offset=wall_offset)


def metrics_routes(
    collector: MeshCollector, *, wall: Callable[[], float], shared_seconds: float = SHARED_SECONDS
) -> list[BaseRoute]:
    """`/metrics`, and the same with a slash behind it; both answer without a redirect. `wall` gives Unix time."""

    async def write(openmetrics: bool) -> bytes:
        offset = wall() - asyncio.get_running_loop().time()
        return await write_page(collector, openmetrics=openmetrics, wall_offset=offset)

    shared = SharedPages(write, shared_seconds)

    async def metrics(request: Request) -> Response:
        openmetrics = wants_openmetrics(request.headers.get("accept", ""))
        page = await shared.get(openmetrics)
        return Response(page, headers={"content-type": OPEN if openmetrics else CLASSIC})

    return routes_of({"/metrics": metrics, "/metrics/": metrics})
