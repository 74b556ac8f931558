"""The figures of bench/overload.py: what became of each request, goodput, and what an overload takes from it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.command import missed
from bench.spread import Spread
from cli.arrangements.turn import quantile

TARGETS = {
    "goodput_share_of_peak": 0.9,
    "refusal_ms_p99": 50.0,
    "wasted_prefill_share": 0.02,
    "success_ratio": 2.0,
    "late_answers": 0,
}
OVERLOADS = ("3", "10")
ON_ITS_WAY = 0.1  # seconds that a request and the end of its answer may spend outside of the gateway
NOBODY = 1e6  # the ratio where no request of a kind was served in time


@dataclass(frozen=True, slots=True)
class GoodputLimits:
    ttft_seconds: float
    itl_seconds: float  # mean time between the tokens of one answer

    def whole_seconds(self, tokens: int) -> float:
        """Time for a whole answer."""
        return self.ttft_seconds + tokens * self.itl_seconds


@dataclass(frozen=True, slots=True)
class Served:
    """One request and what became of it; times are those of the client's clock."""

    kind: str
    prompt_tokens: int
    answer_tokens: int
    came: float
    status: int  # HTTP status; 0: there was no answer
    first: float = 0.0  # when the first token came
    last: float = 0.0
    ended: float = 0.0
    done: bool = False  # the answer is whole
    problem: str = ""
    waits: float | None = None  # how long its client waits for the whole answer, as the request said

    @property
    def late(self) -> bool:
        """Its answer was whole after its own deadline."""
        return self.done and self.waits is not None and self.ended - self.came > self.waits + ON_ITS_WAY

    @property
    def refused(self) -> bool:
        return self.status in (429, 503)

    @property
    def itl_seconds(self) -> float:
        return (self.last - self.first) / max(1, self.answer_tokens - 1)

    def good(self, limits: GoodputLimits) -> bool:
        in_time = self.first - self.came <= limits.ttft_seconds and self.itl_seconds <= limits.itl_seconds
        return self.done and in_time


def about(served: Sequence[Served]) -> dict[str, Any]:
    """Figures that every load has."""
    firsts = sorted(each.first - each.came for each in served if each.done)
    return {
        "requests": len(served),
        "refused": sum(each.refused for each in served),
        "ttft_p50": quantile(firsts, 0.5),
        "ttft_p99": quantile(firsts, 0.99),
        "problems": sorted({each.problem for each in served if each.problem})[:5],
    }


@dataclass(frozen=True, slots=True)
class OverloadRun:
    """The requests that clients sent within `seconds`, and what became of them."""

    requests: Sequence[Served]
    seconds: float
    computed_tokens: float  # rows of prompts that prefill has computed for them

    def goodput(self, limits: GoodputLimits) -> float:
        return sum(each.good(limits) for each in self.requests) / self.seconds

    @property
    def refusals_ms(self) -> list[float]:
        return sorted((each.ended - each.came) * 1000 for each in self.requests if each.refused)

    @property
    def wasted(self) -> float:
        useful = sum(each.prompt_tokens for each in self.requests if each.done)
        return max(0.0, 1 - useful / self.computed_tokens) if self.computed_tokens else 0.0

    def success_ratio(self, limits: GoodputLimits) -> float:
        """The share of requests served in time, of the luckiest kind over the unluckiest."""
        shares = [sum(e.good(limits) for e in of) / len(of) for of in self.by_kind().values()]
        return max(shares) / min(shares) if shares and min(shares) > 0 else NOBODY

    def by_kind(self) -> dict[str, list[Served]]:
        kinds = dict[str, list[Served]]()
        for each in self.requests:
            kinds.setdefault(each.kind, []).append(each)
        return kinds

    def facts(self, limits: GoodputLimits) -> dict[str, Any]:
        return about(self.requests) | {
            "good": sum(each.good(limits) for each in self.requests),
            "done": sum(each.done for each in self.requests),
            "late": sum(each.late for each in self.requests),
            "ended_early": sum(each.status == 200 and not each.done for each in self.requests),
            "share_good": {
                kind: sum(each.good(limits) for each in of) / len(of) for kind, of in sorted(self.by_kind().items())
            },
            "itl_p99": quantile(sorted(each.itl_seconds for each in self.requests if each.done), 0.99),
            "wasted_prefill_share": self.wasted,
        }


def summary(runs: Mapping[str, Sequence[OverloadRun]], limits: GoodputLimits) -> dict[str, Any]:
    """`runs`: by the load as a multiple of the capacity, one of each round."""
    goodputs = {times: Spread.of([run.goodput(limits) for run in rounds]) for times, rounds in runs.items()}
    peak = max(each.median for each in goodputs.values())
    over = [run for times in OVERLOADS for run in runs[times]]
    refusals = sorted(ms for run in over for ms in run.refusals_ms)
    report: dict[str, Any] = {
        "goodput_share_of_peak": {times: goodputs[times].median / peak if peak else 0.0 for times in OVERLOADS},
        "refusal_ms_p99": quantile(refusals, 0.99),
        "wasted_prefill_share": median(run.wasted for run in over),
        "success_ratio": median(run.success_ratio(limits) for run in over),
        "late_answers": sum(each.late for run in over for each in run.requests),
        "goodput": {times: [each.low, each.median, each.high] for times, each in goodputs.items()},
        "runs": {times: [run.facts(limits) for run in rounds] for times, rounds in runs.items()},
    }
    shares = {f"goodput_share_of_peak {times}": report["goodput_share_of_peak"][times] for times in OVERLOADS}
    least = dict.fromkeys(shares, TARGETS["goodput_share_of_peak"])
    most = {name: limit for name, limit in TARGETS.items() if name != "goodput_share_of_peak"}
    lines = missed(report | shares, least=least, most=most)
    return report | {"targets": TARGETS, "passed": not lines, "missed": lines}
