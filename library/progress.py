"""A progress bar on stderr: prompts that are answered, and tokens per second."""

import time
from types import TracebackType
from typing import Any


class PromptProgress:
    def __init__(self, total: int, *, shown: bool) -> None:
        self._total, self._shown = total, shown and total > 0
        self._bar: Any = None
        self._tokens = 0

    def __enter__(self) -> "PromptProgress":
        self._begun = time.perf_counter()
        if self._shown:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = "[progress.description]{task.description}", BarColumn(), MofNCompleteColumn()
            speed = TextColumn("{task.fields[speed]}")
            self._bar = Progress(*columns, TimeRemainingColumn(), speed, console=Console(stderr=True))
            self._bar.start()
            self._task = self._bar.add_task("prompts", total=self._total, speed="")
        return self

    def done(self, output: Any) -> None:
        if self._bar is None:
            return
        answers = getattr(output, "outputs", ())
        self._tokens += sum(len(one.token_ids) for one in answers) if isinstance(answers, list) else 0
        speed = f"{self._tokens / max(1e-9, time.perf_counter() - self._begun):.0f} tokens/s" if self._tokens else ""
        self._bar.update(self._task, advance=1, speed=speed)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
