"""The options of `baton bench load` as one checked value, and the requests and times that follow from them."""

from dataclasses import dataclass
from pathlib import Path
from random import Random

from cli.load.estimate import ServiceSpeeds
from cli.load.plan import LoadError, LoadRequest
from cli.load.schedule import poisson_times
from cli.load.shapes import SHAPES, ShapeName, draw
from cli.load.trace_files import read_trace


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Which requests, and when. LoadError where options contradict each other."""

    shape: ShapeName | None
    trace: Path | None
    scale: float | None  # factor on the pace of a trace: 2 sends twice as fast
    requests: int | None
    rate: float | None
    concurrency: int | None
    seed: int

    def __post_init__(self) -> None:
        if (self.shape is None) == (self.trace is None):
            raise LoadError("give either --shape (short, medium, heavy, concurrent) or --trace FILE")
        if self.rate is not None and self.concurrency is not None:
            raise LoadError("--rate (open loop) and --concurrency (closed loop) exclude each other")
        if self.scale is not None and (self.trace is None or self.rate is not None or self.concurrency is not None):
            raise LoadError("--scale changes the times of a trace: give --trace, and neither --rate nor --concurrency")
        for name, value in (("--scale", self.scale), ("--rate", self.rate)):
            if value is not None and not 0 < value < float("inf"):
                raise LoadError(f"{name} {value:g}: give a number above 0")

    def plan(self) -> list[LoadRequest]:
        """The requests with their arrival times; without times in a closed loop."""
        if self.trace is not None:
            found = read_trace(self.trace, self.requests)
        else:
            assert self.shape is not None
            shape = SHAPES[self.shape]
            found = draw(shape, self.requests or shape.requests, Random(f"{self.seed} lengths"))
        times = self._times(found)
        return [
            LoadRequest(each.input_tokens, each.output_tokens, None if times is None else times[number], each.blocks)
            for number, each in enumerate(found)
        ]

    def clients(self) -> int | None:
        """Requests under way in a closed loop; None in an open one."""
        of_shape = SHAPES[self.shape].concurrency if self.shape is not None else None
        return None if self.rate is not None else self.concurrency or of_shape

    def words(self) -> str:
        """The load as the report names it."""
        source = f"shape {self.shape.value}" if self.shape is not None else f"trace {self.trace and self.trace.name}"
        if (clients := self.clients()) is not None:
            return f"{source}, closed loop with {clients} clients, seed {self.seed}"
        if (rate := self._rate()) is not None:
            return f"{source}, open loop with {rate:g} requests/s, seed {self.seed}"
        return f"{source}, open loop at its own times × {1 / (self.scale or 1.0):g}, seed {self.seed}"

    def _rate(self) -> float | None:
        of_shape = SHAPES[self.shape].requests_per_second if self.shape is not None else None
        return self.rate if self.rate is not None else of_shape

    def _times(self, found: list[LoadRequest]) -> list[float] | None:
        if self.clients() is not None:
            return None
        if (rate := self._rate()) is not None:
            return poisson_times(len(found), rate, Random(f"{self.seed} times"))
        return [(each.at_seconds or 0.0) / (self.scale or 1.0) for each in found]


def given_speeds(prefill_tokens_per_second: float | None, decode_step_ms: float | None) -> ServiceSpeeds | None:
    """The speeds that the user gives, both or none."""
    if prefill_tokens_per_second is None and decode_step_ms is None:
        return None
    if not prefill_tokens_per_second or not decode_step_ms or min(prefill_tokens_per_second, decode_step_ms) <= 0:
        raise LoadError("--prefill-speed and --decode-step-ms belong together: give both, above 0")
    return ServiceSpeeds(prefill_tokens_per_second, decode_step_ms / 1000)
