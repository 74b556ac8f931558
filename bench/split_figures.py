"""The figures of bench/split.py: throughput, the time to the first token and the gaps of three arrangements."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Any

from bench.overload_figures import quantile
from bench.split_client import StreamTimes
from bench.spread import Spread

TARGETS = {"throughput_share": 0.95, "ttft_share": 0.95, "itl_p99_ms": 80.0}


@dataclass(frozen=True, slots=True)
class SplitTurn:
    tokens_per_second: float
    streams: Sequence[StreamTimes]

    @property
    def ttft_p50(self) -> float:
        """A stream that got no token waited for ever; infinite where most got none."""
        return quantile(sorted(each.tokens[0] - each.sent if each.tokens else inf for each in self.streams), 0.5)

    @property
    def itl_p99_ms(self) -> float:
        return quantile(sorted(1000 * (b - a) for each in self.streams for a, b in pairwise(each.tokens)), 0.99)

    @property
    def problems(self) -> list[str]:
        return sorted({each.problem for each in self.streams if each.problem})[:5]


def summary(turns: Mapping[str, Sequence[SplitTurn]]) -> dict[str, Any]:
    """Shares are those of the adaptive mesh over the one without prefill workers, more being better."""
    pairs = list(zip(turns["adaptive"], turns["whole"], strict=True))
    throughput = Spread.of([mine.tokens_per_second / theirs.tokens_per_second for mine, theirs in pairs])
    ttft = Spread.of([theirs.ttft_p50 / mine.ttft_p50 for mine, theirs in pairs])
    itl = Spread.of([mine.itl_p99_ms for mine, _ in pairs])
    return {
        "throughput_share": throughput.median,
        "ttft_share": ttft.median,
        "itl_p99_ms": itl.median,
        "spread": {
            "throughput_share": [throughput.low, throughput.high],
            "ttft_share": [ttft.low, ttft.high],
            "itl_p99_ms": [itl.low, itl.high],
        },
        "turns": {name: [facts(turn) for turn in each] for name, each in turns.items()},
    }


def facts(turn: SplitTurn) -> dict[str, Any]:
    return {
        "tokens_per_second": turn.tokens_per_second,
        "ttft_p50": turn.ttft_p50,
        "itl_p99_ms": turn.itl_p99_ms,
        "requests": len(turn.streams),
        "without_a_token": sum(not each.tokens for each in turn.streams),
        "problems": turn.problems,
    }


def misses(report: Mapping[str, Any]) -> list[str]:
    """Names of the targets that were missed."""
    shares = [name for name in ("throughput_share", "ttft_share") if report[name] < TARGETS[name]]
    return shares + (["itl_p99_ms"] if report["itl_p99_ms"] > TARGETS["itl_p99_ms"] else [])
