"""Mixed requests through a mesh behind real Envoys, and what a real collector receives of them.

Streamed, whole, local, with several choices, failed, cancelled and resumed requests run side by side, while decode
workers are killed and come back. Every request brings the trace context of a client, by which its trace is found. A
trace is complete when the edge's span, the gateway's spans and the workers' spans are one tree below the client's
span; it is tiled by the share of the gateway's time that stages cover."""

import asyncio
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from bench.command import say
from bench.traces_requests import Api
from mesh.telemetry import semconv
from mesh.telemetry.spans import SpanKind, SpanRecord, TraceContext, make_traceparent
from tests.harness.collector import Collector
from tests.harness.envoys import EnvoyMesh, envoy_mesh
from tests.harness.trees import own_shares, tiled_share

KINDS = ("streamed", "whole", "streamed", "choices", "failed", "streamed", "cancelled", "local", "too long", "resumed")
SENT: dict[
    str, tuple[int, int, dict[str, Any]]
] = {  # tokens of the prompt and at most of the answer, and how it is sent
    "streamed": (200, 40, {}),
    "whole": (150, 30, {"stream": False}),
    "choices": (120, 20, {"n": 2}),
    "failed": (10, 10, {"temperature": -1}),
    "too long": (100, 10**6, {}),
    "local": (8, 30, {}),
    "cancelled": (200, 400, {"pieces": 4}),
}
CONCURRENCY = 6
SETTLE_SECONDS = 5.0  # after the last answer, for exporters
SHORT_STAGE = 0.05  # no stage but work may have more of a request
SETTINGS = {"worker.threads": "1", "worker.transports": "shm", "worker.page_tokens": "16"}


@dataclass(slots=True)
class TracedRequest:
    """One request, and the trace that must exist of it."""

    kind: str
    name: str
    context: TraceContext  # the client's trace context
    status: int = 0
    spans: list[SpanRecord] = field(default_factory=list)

    @property
    def ours(self) -> list[SpanRecord]:
        """The spans of the gateway and of its workers."""
        return [span for span in self.spans if not is_envoy(span)]

    @property
    def orphans(self) -> int:
        ids = {span.span_id for span in self.spans} | {self.context.span_id}
        return sum(span.parent_id not in ids for span in self.spans)

    @property
    def problem(self) -> str:
        servers = [span for span in self.spans if span.kind is SpanKind.SERVER and not is_envoy(span)]
        if len(servers) != 1:
            return f"{len(servers)} root spans of the gateway among {len(self.spans)} spans"
        if not any(is_envoy(span) and span.parent_id == self.context.span_id for span in self.spans):
            return "no span of the edge below the client's"
        names = {span.name for span in self.spans}
        missing = expected_names(self.kind) - names
        return f"without {', '.join(sorted(missing))}" if missing else ""


def is_envoy(span: SpanRecord) -> bool:
    return span.attributes.get("component") == "proxy"


def expected_names(kind: str) -> set[str]:
    """Spans that a trace of this kind must have."""
    if kind in ("failed", "too long"):
        return {semconv.PREPROCESS, semconv.POSTPROCESS}
    served = {semconv.PREPROCESS, semconv.ROUTE, semconv.DECODE, semconv.DISPATCH}
    if kind == "cancelled":
        return served
    if kind == "local":
        return served | {semconv.COMPUTE, semconv.GENERATE, semconv.POSTPROCESS}
    handed = {semconv.PREFILL, semconv.COMPUTE, semconv.KV_SEND, semconv.KV_RECEIVE, semconv.GENERATE}
    return served | handed | {semconv.POSTPROCESS}


async def mixed(count: int) -> dict[str, Any]:
    """Send `count` requests and judge their traces."""
    collector = Collector()
    await collector.start()
    try:
        with TemporaryDirectory() as folder:
            async with envoy_mesh(
                Path(folder), prefills=2, decodes=2, otlp=collector.address, settings=SETTINGS
            ) as mesh:
                sent = await MixedRequests(mesh).run(count)
                await collector.wait_for(len(sent), SETTLE_SECONDS)
                await asyncio.sleep(SETTLE_SECONDS)
    finally:
        await collector.close()
    for each in sent:
        each.spans = collector.traces.get(each.context.trace_id, [])
    return judge(sent)


class MixedRequests:
    def __init__(self, mesh: EnvoyMesh) -> None:
        self._mesh, self._random = mesh, Random(1)
        self._api = Api(mesh.address, ca=mesh.ca)
        self._kill = asyncio.Lock()

    async def run(self, count: int) -> list[TracedRequest]:
        sent = [self._request(number, KINDS[number % len(KINDS)]) for number in range(count)]
        turn, done = asyncio.Semaphore(CONCURRENCY), Counter[str]()

        async def one(request: TracedRequest) -> None:
            async with turn:
                await self._send(request)
            done[request.kind] += 1
            if done.total() % 20 == 0:
                say(f"{done.total()} of {count} requests: {dict(done)}")

        await asyncio.gather(*(one(request) for request in sent))
        self._api.close()
        return sent

    def _request(self, number: int, kind: str) -> TracedRequest:
        context = TraceContext(self._random.getrandbits(128) or 1, self._random.getrandbits(64) or 1)
        return TracedRequest(kind, f"mixed-{number}", context)

    def _prompt(self, tokens: int) -> list[int]:
        return [self._random.randrange(1, 200) for _ in range(tokens)]

    async def _send(self, request: TracedRequest) -> None:
        headers = {"traceparent": make_traceparent(request.context)}
        if request.kind == "resumed":
            request.status = await self._killed(request.name, headers)
            return
        prompt_tokens, max_tokens, fields = SENT[request.kind]
        prompt = self._prompt(prompt_tokens)
        send = self._api.leave if request.kind == "cancelled" else self._api.complete
        request.status = await send(request.name, prompt, max_tokens=max_tokens, headers=headers, **fields)

    async def _killed(self, name: str, headers: Mapping[str, str]) -> int:
        """A long answer, in whose middle the decode worker that computes it is killed."""
        async with self._kill:
            long = asyncio.create_task(self._api.complete(name, self._prompt(100), max_tokens=300, headers=headers))
            victim = await self._worker_of(name, long)
            if victim is not None:
                service = self._mesh.services[victim]
                service.send_signal(signal.SIGKILL)
                await service.ended()
                status = await long
                await service.start()
                await self._mesh.attached(2, 2)
                return status
            return await long

    async def _worker_of(self, name: str, long: asyncio.Task[int]) -> str | None:
        """The decode worker that generates this answer; None when the answer ended before."""
        gateway = Api(self._mesh.ports["gateway"].http)
        while not long.done():
            for span in await gateway.running_spans(name):
                if span["name"] == semconv.DECODE:
                    await asyncio.sleep(0.05)
                    return str(span["attributes"][semconv.WORKER])
            await asyncio.sleep(0.02)
        return None


def judge(sent: Sequence[TracedRequest]) -> dict[str, Any]:
    """The report. A resumed request counts as resumed only if its trace says so."""
    problems = [f"{each.kind} {each.name} (status {each.status}): {each.problem}" for each in sent if each.problem]
    tiled = {each.name: tiled_share(each.ours) for each in sent if each.spans}
    long_stages = [
        f"{each.name} ({each.kind}): {name} has {share:.0%}"
        for each in sent
        if each.kind in ("streamed", "whole", "resumed") and each.spans
        for name, share in own_shares(each.ours).items()
        if name not in semconv.WORK and share > SHORT_STAGE
    ]
    return {
        "requests": len(sent),
        "kinds": dict(Counter(each.kind for each in sent)),
        "statuses": dict(Counter(f"{each.kind} {each.status}" for each in sent)),
        "resumed": sum(_path(each) == "resumed" for each in sent),
        "spans": sum(len(each.spans) for each in sent),
        "without_trace": sum(not each.spans for each in sent),
        "min_tiled": min(tiled.values(), default=0.0),
        "orphans": sum(each.orphans for each in sent),
        "problems": problems,
        "long_stages": long_stages,
    }


def _path(sent: TracedRequest) -> str:
    return next((str(span.attributes[semconv.PATH]) for span in sent.ours if semconv.PATH in span.attributes), "")
