"""A decode worker measures its steps, the landings that became running requests, and the delay of its loop.

Plain counts stay where they are counted, see `DecodeWorker.counts`; both leave in one message."""

from collections.abc import Mapping

from engine.step.plan import Plan
from mesh.messages.reports import Measures
from mesh.telemetry.buckets import DELAY, ITERATION_TOKENS, ROWS, SHARE, STAGE, STEP
from mesh.telemetry.measures import MeasureBook


class DecodeMeasures:
    def __init__(self, *, max_batch: int) -> None:
        self._book, self._max_batch = MeasureBook(), max_batch
        self._step_seconds = self._book.histogram("step_seconds", STEP)
        self._step_rows = self._book.histogram("step_rows", ROWS)
        self._step_tokens = self._book.histogram("step_tokens", ITERATION_TOKENS)
        self._batch_efficiency = self._book.histogram("batch_efficiency", SHARE)
        self._landing_seconds = self._book.histogram("kv_landing_seconds", STAGE)
        self.loop_delay = self._book.histogram("event_loop_delay_seconds", DELAY)

    def step(self, plan: Plan, seconds: float, emitted: int) -> None:
        """A step took `seconds` and emitted `emitted` tokens of all requests."""
        rows = prompt_rows = 0
        for piece in plan.pieces:
            count = len(piece.tokens)
            rows += count
            if piece.sampled < count:
                prompt_rows += count
        self._step_seconds.observe(seconds)
        self._step_rows.observe(rows)
        self._step_tokens.observe(prompt_rows + emitted)
        self._batch_efficiency.observe(len(plan.pieces) / self._max_batch)

    def landed(self, seconds: float) -> None:
        """A landing became a running request `seconds` after it was granted."""
        self._landing_seconds.observe(seconds)

    def message(self, counts: Mapping[str, int]) -> Measures:
        return self._book.message(counts)
