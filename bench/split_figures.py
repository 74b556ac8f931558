"""The figures of bench/split.py: throughput, the time to the first token and the gaps of three arrangements."""

from collections.abc import Mapping, Sequence
from typing import Any

from bench.spread import Spread
from cli.arrangements.turn import LoadTurn

TARGETS = {"throughput_share": 0.95, "ttft_share": 0.95, "itl_p99_ms": 80.0}


def summary(turns: Mapping[str, Sequence[LoadTurn]]) -> dict[str, Any]:
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
        "turns": {name: [turn.facts() for turn in each] for name, each in turns.items()},
    }


def misses(report: Mapping[str, Any]) -> list[str]:
    """Names of the targets that were missed."""
    shares = [name for name in ("throughput_share", "ttft_share") if report[name] < TARGETS[name]]
    return shares + (["itl_p99_ms"] if report["itl_p99_ms"] > TARGETS["itl_p99_ms"] else [])
