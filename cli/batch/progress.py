"""Progress on stderr: requests with an outcome, requests and tokens per second, failures and further tries.

A terminal gets a bar. A file or a pipe gets a line now and then, which a full disk or a closed pipe costs and nothing
else."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cli.connecting.answer_text import printable
from gateway.batches.runner import BatchTally

LINE_SECONDS = 10.0  # between two lines where there is no terminal


class BatchProgress:
    """The observer of a run; it needs a running event loop."""

    def __init__(self, total: int, found: int, console: Console, say: Callable[[str], None]) -> None:
        """`found`: requests that had their outcome before this run."""
        self._total, self._found, self._say = total, found, say
        columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
        self._bar = Progress(*columns, console=console, refresh_per_second=4) if console.is_terminal else None
        self._task = self._bar.add_task("", total=total, completed=found) if self._bar is not None else None
        self._clock = asyncio.get_running_loop().time
        self._begun = self._said = self._clock()

    def __enter__(self) -> "BatchProgress":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            with suppress(OSError):  # the terminal is gone
                self._bar.stop()

    @property
    def seconds(self) -> float:
        return self._clock() - self._begun

    def settled(self, tally: BatchTally) -> None:
        self._show(tally, "")

    def waits(self, tally: BatchTally, why: str) -> None:
        self._show(tally, f" (last: {printable(why)})")

    def _show(self, tally: BatchTally, more: str) -> None:
        ended, words = self._found + tally.answered + tally.failed, words_of(tally, self.seconds) + more
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=ended, description=words.replace("[", "\\["))
        elif self._clock() - self._said > LINE_SECONDS:
            self._said = self._clock()
            self._say(f"{ended}/{self._total}  {words}")


def words_of(tally: BatchTally, seconds: float) -> str:
    """Speed and counts in a few words."""
    seconds = max(seconds, 1e-9)
    requests = (tally.answered + tally.failed) / seconds
    parts = [f"{requests:.1f} requests/s", f"{tally.completion_tokens / seconds:.0f} tokens/s"]
    parts += [f"{tally.failed} failed"] if tally.failed else []
    parts += [f"{tally.again} tried again"] if tally.again else []
    return ", ".join(parts)
