"""One run: sends the planned requests by their schedule, and watches whether the generator itself keeps up.

Cancelling `run_load` ends the requests under way; their records stay without an end."""

import asyncio
from collections.abc import Callable, Sequence

from cli.connecting.http_client import OWN_LIMIT
from cli.load.form import RequestForm
from cli.load.plan import LoadRequest
from cli.load.record import MeasuredRequest
from cli.load.schedule import closed_loop, open_loop
from cli.load.statistics import LoadSummary, percentile
from cli.load.target import LoadTarget

TICK_SECONDS = 0.01  # between two looks at the event loop
LEAST_LATE_SECONDS = 0.005
LATE_SHARE = 0.05  # share of a latency: a delay of the generator's own that takes more falsifies it

OnRecord = Callable[[MeasuredRequest], None]


class LoadRun:
    """The records of a run, and the delays of its event loop. It may be read while it runs."""

    def __init__(self, target: LoadTarget, form: RequestForm, requests: Sequence[LoadRequest]) -> None:
        self.records: list[MeasuredRequest] = []
        self.loop_delays: list[float] = []
        self._target, self._form, self._requests = target, form, requests
        self._bodies: dict[int, bytes] = {}

    @property
    def loop_delay_p99_seconds(self) -> float:
        return percentile(self.loop_delays, 99) if self.loop_delays else 0.0

    async def run(
        self, *, times: Sequence[float] | None, concurrency: int | None, on_sent: OnRecord, on_ended: OnRecord
    ) -> None:
        """Open loop with `times`, else closed loop with `concurrency`."""

        async def send(number: int, scheduled: float) -> None:
            request = self._requests[number]
            begun = asyncio.get_running_loop().time()
            record = MeasuredRequest(number, scheduled, begun, request.input_tokens, request.output_tokens)
            self.records.append(record)
            on_sent(record)
            await self._target.perform(self._form.path, self._bodies.pop(number), record)
            on_ended(record)

        def prepare(number: int) -> None:
            self._bodies[number] = self._form.body(number, self._requests[number])

        watch = asyncio.create_task(self._watch())
        try:
            if times is not None:
                await open_loop(times, send, prepare)
            else:
                assert concurrency is not None
                await closed_loop(len(self._requests), concurrency, send, prepare)
        finally:
            watch.cancel()

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + TICK_SECONDS
            await asyncio.sleep(TICK_SECONDS)
            self.loop_delays.append(max(0.0, loop.time() - due))


def lateness(summary: LoadSummary, loop_delay_p99_seconds: float) -> list[str]:
    """Why the generator, not the server, makes this result doubtful; empty when it kept up."""
    reasons = list[str]()
    if count := summary.errors.get(OWN_LIMIT):
        reasons.append(f"{count} requests found no free file or port on this machine (see `ulimit -n`)")
    if summary.lateness_p99_seconds > _tolerated(summary.ttft.p50 if summary.ttft else 0.0):
        late = summary.lateness_p99_seconds * 1000
        reasons.append(f"it began requests {late:.1f} ms after their scheduled time (p99)")
    if loop_delay_p99_seconds > _tolerated(summary.itl.p50 if summary.itl else 0.0):
        reasons.append(f"its event loop stood still for {loop_delay_p99_seconds * 1000:.1f} ms (p99)")
    return reasons


def _tolerated(latency: float) -> float:
    return max(LEAST_LATE_SECONDS, LATE_SHARE * latency)
