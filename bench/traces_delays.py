"""Puts a delay into each stage of a request, and between stages, and sees which span shows it.

One mesh serves all requests. For each stage some requests run without a delay and some with it, in turns; the figure of
a span is the difference of its least own times, since a busy machine only ever adds to them. A blocked loop counts as
part of the span that it interrupted, unless it is what was put in. A stage is shown when the span named for it grew by
about the delay and no other span grew by more than a third of it. Until it is, more pairs follow: least times only get
nearer to the truth, and a span that really shows another one's delay has it in every request."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from bench.command import say
from bench.traces_requests import Api
from cli.why.waterfall import Node, is_frame, waterfall
from mesh.telemetry import semconv
from tests.harness.delays import STAGES
from tests.harness.mesh import ProcessMesh, process_mesh

DELAY_SECONDS = 0.08
PROMPT_TOKENS, NEW_TOKENS = 300, 24
MOST_ROUNDS = 3  # rounds at one stage, each of `repeats` pairs; the first one without a problem is the last
LOW, HIGH, ELSEWHERE = 0.7, 1.6, 0.3  # shares of the delay: least and most growth of its span, most growth of another
SETTINGS = {
    "gateway.local": "never",
    "worker.prefix_cache": "false",
    "worker.speculation": "off",
    "worker.threads": "1",
    "worker.transports": "shm",
}

_BLOCKED_IN = f"{semconv.LOOP_BLOCKED} in "
OwnTimes = Mapping[str, float]  # span -> milliseconds of its own


@dataclass(frozen=True, slots=True)
class StageShown:
    """The spans that grew when one stage was delayed."""

    stage: str
    expected: str
    grown: Mapping[str, float]  # span -> milliseconds by which its own time grew

    @property
    def shown(self) -> str:
        """The span that grew most."""
        return max(self.grown, key=lambda name: self.grown[name], default="")

    @property
    def problem(self) -> str:
        delay = DELAY_SECONDS * 1000
        mine = self.grown.get(self.expected, 0.0)
        if not LOW * delay <= mine <= HIGH * delay:
            return f"{self.expected} grew by {mine:.0f} ms"
        others = {name: more for name, more in self.grown.items() if name != self.expected and more > ELSEWHERE * delay}
        return f"others grew too: {others}" if others else ""


async def all_stages(repeats: int) -> list[StageShown]:
    """Every stage of STAGES."""
    found: list[StageShown] = []
    async with process_mesh(prefills=1, decodes=1, settings=SETTINGS, delays=True) as mesh:
        sender = Sender(mesh)
        for _ in range(3):
            await sender.own_times()  # warm-up
        for stage in STAGES:
            found.append(await sender.stage(stage, repeats))
            say(f"{len(found)} of {len(STAGES)}: {stage}: {found[-1].problem or f'shown by {found[-1].shown}'}")
        sender.close()
    return found


class Sender:
    """Sends requests of equal size and reads their traces."""

    def __init__(self, mesh: ProcessMesh) -> None:
        self._mesh, self._random, self._count = mesh, Random(0), 0
        self._api = Api(mesh.http)

    async def stage(self, stage: str, repeats: int) -> StageShown:
        tier, expected = STAGES[stage]
        process = {"gateway": self._mesh.gateway, "prefill": self._mesh.prefills[0], "decode": self._mesh.decodes[0]}
        measured = (lambda times: times) if expected.startswith(_BLOCKED_IN) else with_blocked
        plain, delayed = list[OwnTimes](), list[OwnTimes]()
        for _ in range(MOST_ROUNDS):
            for _ in range(repeats):
                plain.append(measured(await self.own_times()))
                await process[tier].ask("delay", stage=stage, seconds=DELAY_SECONDS)
                delayed.append(measured(await self.own_times()))
            shown = StageShown(stage, expected, grown(plain, delayed))
            if not shown.problem:
                break
        return shown

    async def own_times(self) -> OwnTimes:
        """One request; the own time of each of its spans."""
        self._count += 1
        name = f"delay-{self._count}"
        prompt = [self._random.randrange(1, 200) for _ in range(PROMPT_TOKENS)]
        await self._api.complete(name, prompt, max_tokens=NEW_TOKENS)
        return own_times((await self._api.trace(name))["spans"])

    def close(self) -> None:
        self._api.close()


def own_times(spans: Sequence[Mapping[str, Any]]) -> OwnTimes:
    """Milliseconds of each stage, under the names that STAGES uses."""
    fall = waterfall(spans)
    parents = {node.span_id: node for node in fall.root.walk()}
    found: defaultdict[str, float] = defaultdict(float)
    for node in fall.root.walk():
        if not is_frame(node, fall.root):
            found[_label(node, parents)] += node.own
    return found


def with_blocked(times: OwnTimes) -> OwnTimes:
    """The same, where the time of a blocked loop is the interrupted span's."""
    found: defaultdict[str, float] = defaultdict(float)
    for name, milliseconds in times.items():
        found[name.removeprefix(_BLOCKED_IN)] += milliseconds
    return found


def _label(node: Node, parents: Mapping[str, Node]) -> str:
    parent = parents.get(node.parent_id)
    if parent is not None and node.name == semconv.LOOP_BLOCKED:
        return _BLOCKED_IN + _label(parent, parents)
    if parent is not None and parent.name in (semconv.PREFILL, semconv.DECODE):
        return f"{parent.name} {node.name}"
    return node.name


def grown(plain: Sequence[OwnTimes], delayed: Sequence[OwnTimes]) -> dict[str, float]:
    names = {name for times in (*plain, *delayed) for name in times}
    return {
        name: min(times.get(name, 0.0) for times in delayed) - min(times.get(name, 0.0) for times in plain)
        for name in names
    }
