"""A simulated mesh behind the HTTP API, whose clients connect inside this process, that records its traces."""

import asyncio
import json
from collections.abc import Sequence
from functools import cache
from random import Random
from typing import Any, Self

from engine.builtin import MODEL
from gateway.dialects.api import HttpApi
from gateway.dialects.debug_pages import debug_routes
from gateway.http.connection import ClientConnection
from gateway.http.in_process import InProcessClient
from gateway.http.in_process_call import answer_of, request_bytes
from gateway.http.open_connections import OpenConnections
from gateway.prompts.assets import Assets, load_assets
from gateway.routing.router import Local
from gateway.tracing.slo_limits import Limits
from gateway.tracing.traces import SETTLE_SECONDS
from mesh.telemetry.spans import RecordingTelemetry, SpanRecord
from tests.harness.trees import by_trace, orphans, picture, tiled_share
from tests.sim.cluster import Cluster

CLIENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
HELLO = {"model": "sim", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 12, "seed": 1}


@cache
def assets() -> Assets:
    return load_assets(MODEL, "sim")


class HttpMesh:
    def __init__(
        self,
        *,
        limits: Limits | None = None,
        telemetry: RecordingTelemetry | None = None,
        local: Local = Local.AUTO,
    ) -> None:
        self.telemetry = telemetry or RecordingTelemetry()
        self.cluster = Cluster(1, telemetry=self.telemetry, limits=limits, local=local)
        traces = self.cluster.gateway.traces
        also = debug_routes(traces, lambda: 1000.0 + asyncio.get_running_loop().time())
        self.api = HttpApi(
            self.cluster.gateway, assets(), random=Random(5), clock=lambda: 0.0, traces=traces, also=also
        )

        self.open = OpenConnections(self.cluster.gateway.limits)

    async def start(self, prefills: int, decodes: int) -> Self:
        await self.cluster.start(prefills, decodes)
        return self

    async def post(
        self,
        body: Any,
        *,
        path: str = "/v1/chat/completions",
        headers: Sequence[tuple[bytes, bytes]] = (),
        leaves_after: float | None = None,
        slow: float = 0.0,
    ) -> tuple[int, bytes]:
        """Status and body. `leaves_after`: the client hangs up; `slow`: it takes so long to read each part."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        client = InProcessClient(lambda: ClientConnection(self.api.app, self.open))
        given = [(b"host", b"sim"), (b"content-type", b"application/json"), *headers]
        client.send(request_bytes("POST" if raw else "GET", path, given, raw))
        if leaves_after is not None:
            asyncio.get_running_loop().call_later(leaves_after, client.close)
        got = bytearray()
        while data := await client.read():
            got += data
            client.stop_reading()
            await asyncio.sleep(slow)
        answer = answer_of(bytes(got))
        return answer.status, answer.body

    async def trees(self) -> list[list[SpanRecord]]:
        await asyncio.sleep(SETTLE_SECONDS + 0.1)
        return list(by_trace(self.telemetry.spans).values())

    async def tree(self) -> list[SpanRecord]:
        (tree,) = await self.trees()
        assert orphans(tree) == [] and tiled_share(tree) >= 0.98, picture(tree)
        return tree


def attributes(tree: list[SpanRecord], name: str) -> dict[str, Any]:
    return dict(next(span for span in tree if span.name == name).attributes)
