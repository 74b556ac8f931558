"""Baton and each of its peers take turns at each point, between measurements of the machine's limits.

A turn is both, one after the other. It counts when no limit that binds the point moved by more than a tenth from before
the first to after the second: the peak for a prompt, the peak and the read bandwidth for decode. Its ratio is Baton's
speed beside the peer's in that turn."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from bench.command import say
from bench.peers.engines import EngineProcess, Generation
from bench.roofline_limits import Bound, Meter
from bench.spread import Spread

BEHIND, STEPS = 128, 32  # tokens of each prompt, and tokens behind the first one
POINTS = {
    "prefill_512": Generation(1, 512, 1),
    "prefill_2048": Generation(1, 2048, 1),
    "decode_b1": Generation(1, BEHIND, 1 + STEPS),
    "decode_b8": Generation(8, BEHIND, 1 + STEPS),
    "decode_b32": Generation(32, BEHIND, 1 + STEPS),
}


@dataclass(slots=True)
class Comparison:
    """Turns of Baton and one peer at one point: tokens per second of those that count."""

    peer: str
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)
    dropped: int = 0

    @property
    def ratio(self) -> Spread:
        return Spread.ratio(self.ours, self.theirs)

    def __str__(self) -> str:
        if not self.ours:
            return f"{self.peer:20} no turn counts, because the machine's limits moved in all {self.dropped}"
        told = f"{median(self.ours):8.1f} beside {median(self.theirs):8.1f} tokens/s of {self.peer:20}"
        return f"{told} {self.ratio}, {self.dropped} dropped"


async def speed(engine: EngineProcess, point: Generation) -> float:
    """Tokens per second: of the prompt, or of the tokens behind the first of each answer."""
    if point.tokens == 1:
        return point.rows * point.prompt / await engine.seconds(point)
    first = await engine.seconds(Generation(point.rows, point.prompt, 1))
    return point.rows * STEPS / (await engine.seconds(point) - first)


async def compare(
    ours: EngineProcess, peer: EngineProcess, point: Generation, *, turns: int, most: int, meter: Meter
) -> Comparison:
    found = Comparison(peer.name)
    for engine in (ours, peer):
        await speed(engine, point)  # warms up
    for number in range(most):
        pair = (ours, peer) if number % 2 == 0 else (peer, ours)
        before = meter.limits()
        first = await speed(pair[0], point)
        between = meter.limits()
        second = await speed(pair[1], point)
        bound = Bound.PEAK if point.tokens == 1 else Bound.BOTH
        if before.near(between, bound) and before.near(meter.limits(), bound):
            mine, its = (first, second) if number % 2 == 0 else (second, first)
            found.ours.append(mine)
            found.theirs.append(its)
        else:
            found.dropped += 1
        if len(found.ours) == turns:
            break
    return found


def best_peer(found: Sequence[Comparison]) -> Comparison | None:
    """The peer beside which Baton looks worst."""
    return min((each for each in found if each.ours), key=lambda each: each.ratio.median, default=None)


def tell(point: str, precision: str, found: Comparison) -> Comparison:
    say(f"{point:13} {precision:5} {found}")
    return found
