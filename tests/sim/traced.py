"""A simulated mesh whose traces are kept, and what every tree must fulfil."""

import asyncio
from typing import Any, Self

from cli.why.waterfall import waterfall
from gateway.dialects.debug_pages import spans_json
from gateway.tracing.traces import SETTLE_SECONDS
from mesh.messages.jobs import Sampling, Tier
from mesh.telemetry.spans import RecordingTelemetry, SpanRecord
from tests.harness.trees import by_trace, orphans, picture, root_of, tiled_share
from tests.sim.clients import SimClient
from tests.sim.cluster import Cluster

LONG = Sampling(max_tokens=80)


class TracedCluster:
    """A cluster whose traces are kept."""

    def __init__(self, seed: int = 1, **more: Any) -> None:
        self.telemetry = RecordingTelemetry()
        self.cluster = Cluster(seed, telemetry=self.telemetry, **more)

    async def start(self, prefills: int, decodes: int) -> Self:
        await self.cluster.start(prefills, decodes)
        return self

    def ask(self, tokens: int = 41, sampling: Sampling = LONG, first: int = 0, **more: Any) -> SimClient:
        return self.cluster.ask(tuple(range(first, first + tokens)), sampling, **more)

    def serving(self, tier: Tier) -> str:
        """The process of this tier that serves the only request."""
        (request,) = self.cluster.gateway.sequencer.requests.values()
        incarnation = request.decode if tier is Tier.DECODE else request.prefill
        return next(each.name for each in self.cluster.processes.values() if each.incarnation == incarnation)

    async def trees(self) -> list[list[SpanRecord]]:
        assert await self.cluster.finish() == []
        await asyncio.sleep(SETTLE_SECONDS + 0.1)
        return list(by_trace(self.telemetry.spans).values())

    async def tree(self) -> list[SpanRecord]:
        (tree,) = await self.trees()
        return tree


def check(tree: list[SpanRecord]) -> None:
    assert orphans(tree) == [], picture(tree)
    assert tiled_share(tree) >= 0.98, picture(tree)
    root = root_of(tree)
    explained = waterfall(spans_json(tree, root.start_seconds))
    assert explained.tiled >= 0.98, f"a frame without stages\n{picture(tree)}"
    for span in tree:
        assert root.start_seconds <= span.start_seconds <= span.end_seconds <= root.end_seconds, picture(tree)


def names(tree: list[SpanRecord]) -> set[str]:
    return {span.name for span in tree}
