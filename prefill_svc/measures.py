"""A prefill worker measures its steps, each transfer of a prompt's pages, and the delay of its loop.

A transfer begins when the worker accepts decode's Landing. It ends well with the first Commit, else when the prompt
stops. *Exposed* is the part after the first token was sampled: no compute hides it. Plain counts stay where they are
counted, see `PrefillWorker.counts`."""

from collections.abc import Mapping

from engine.step.plan import Plan
from mesh.messages.reports import Measures
from mesh.telemetry.buckets import DELAY, ITERATION_TOKENS, ROWS, SHARE, STAGE, STEP
from mesh.telemetry.measures import MeasureBook
from mesh.timing.speed import SteadyFigure

FADES = 0.95  # weight that earlier writes keep with each one that follows


class PrefillMeasures:
    def __init__(self, *, step_tokens: int, page_bytes: int) -> None:
        self._book = MeasureBook()
        self._most_rows = step_tokens
        self._page_bytes = page_bytes
        self._write_seconds, self._written_pages = 0.0, 0.0  # sums over recent writes: a large one counts for more
        self._reported_page_seconds = SteadyFigure()
        self._step_seconds = self._book.histogram("step_seconds", STEP)
        self._step_rows = self._book.histogram("step_rows", ROWS)
        self._step_tokens = self._book.histogram("step_tokens", ITERATION_TOKENS)
        self._batch_efficiency = self._book.histogram("batch_efficiency", SHARE)
        for reason in ("write_failed", "session_ended", "unreachable"):
            self._book.add(f"kv_transfer_errors/{reason}", 0)
        self.loop_delay = self._book.histogram("event_loop_delay_seconds", DELAY)

    def step(self, plan: Plan, seconds: float) -> None:
        rows, emitted = plan.rows, sum(piece.sampled for piece in plan.pieces)
        self._step_seconds.observe(seconds)
        self._step_rows.observe(rows)
        self._step_tokens.observe(rows + emitted)
        self._batch_efficiency.observe(rows / self._most_rows)

    def wrote(self, transport: str, size: int, seconds: float) -> None:
        self._book.add(f"kv_transfer_bytes/{transport}/ok", size)
        self._write_seconds = FADES * self._write_seconds + seconds
        self._written_pages = FADES * self._written_pages + size / self._page_bytes

    @property
    def page_seconds(self) -> float:
        """Time that one page takes to a decode worker, on average over the pages of recent writes; 0: not measured
        yet."""
        return self._reported_page_seconds.of(self._write_seconds / self._written_pages if self._written_pages else 0.0)

    def write_failed(self, transport: str, size: int) -> None:
        """Some of these bytes may have arrived all the same."""
        self._book.add(f"kv_transfer_bytes/{transport}/error", size)

    def committed(self, transport: str, seconds: float, *, exposed_seconds: float, hidden: float) -> None:
        """Commit went out; `hidden` is the share of the bytes that were written before the first token was sampled."""
        self._book.histogram(f"kv_transfer_seconds/{transport}/ok", STAGE).observe(seconds)
        self._book.histogram(f"kv_transfer_exposed_seconds/{transport}", STAGE).observe(exposed_seconds)
        self._book.histogram(f"kv_transfer_hidden_ratio/{transport}", SHARE).observe(hidden)

    def broken_off(self, transport: str, seconds: float, result: str) -> None:
        """A transfer ended before its Commit: "error" or "cancelled"."""
        self._book.histogram(f"kv_transfer_seconds/{transport}/{result}", STAGE).observe(seconds)

    def failed(self, reason: str) -> None:
        """A prompt was given back to the gateway because its pages cannot reach decode."""
        self._book.add(f"kv_transfer_errors/{reason}")

    def message(self, counts: Mapping[str, int]) -> Measures:
        return self._book.message(counts)
