"""The limits that an operator has set for latencies: traces flag the requests that miss one, for tail sampling."""

from dataclasses import dataclass

from gateway.tracing.record import RequestRecord

TTFT, ITL = "ttft", "itl"


@dataclass(frozen=True, slots=True)
class Limits:
    ttft_seconds: float | None = None  # time to the first token; None: no limit
    itl_seconds: float | None = None  # 99th percentile of the time between tokens; None: no limit

    def missed(self, record: RequestRecord) -> tuple[str, ...]:
        """Names of the limits that this request has missed so far."""
        missed = list[str]()
        first = record.ttft_seconds
        waited = record.seconds if first is None else first
        if self.ttft_seconds is not None and waited > self.ttft_seconds:
            missed.append(TTFT)
        gaps = [choice.itl_p99_seconds for choice in record.choices if choice.itl_p99_seconds is not None]
        if self.itl_seconds is not None and max(gaps, default=0.0) > self.itl_seconds:
            missed.append(ITL)
        return tuple(missed)


NO_LIMITS = Limits()
