"""One session from the checked files to the totals: take up what the files hold, find a mesh, run, say how it ended."""

import asyncio
import os
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from cli.batch.interrupts import interruptible
from cli.batch.mesh import BatchMesh, parse_http, running, started
from cli.batch.progress import BatchProgress
from cli.output import err, say
from gateway.batches.input_file import BatchInput
from gateway.batches.ledger import BatchLedger, opened_ledger
from gateway.batches.problems import BatchStopped
from gateway.batches.retrying import RetryRule
from gateway.batches.runner import PRIORITY, BatchRunner, BatchTally


@dataclass(frozen=True, slots=True)
class BatchOrder:
    """The whole order of a run, as the command takes it."""

    input: Path
    output: Path
    errors: Path | None
    http: str
    model: str | None  # starts a mesh of its own
    concurrency: int | None
    priority: int | None
    tries: int | None
    timeout_seconds: float
    force: bool

    def mesh(self) -> AbstractAsyncContextManager[BatchMesh]:
        """BatchRefused if the address is none."""
        if self.model is not None:
            return started(self.model, self.timeout_seconds)
        return running(parse_http(self.http), self.timeout_seconds)


@dataclass(slots=True)
class BatchTotals:
    requests: int
    found: int = 0  # had their outcome before this run
    failed_before: int = 0  # those among them that failed
    tally: BatchTally | None = None  # None: nothing ran
    seconds: float = 0.0
    interrupted: bool = False
    problem: str = ""  # why the run ended early

    @property
    def missing(self) -> int:
        tally = self.tally or BatchTally()
        return self.requests - self.found - tally.answered - tally.failed

    def as_json(self) -> dict[str, Any]:
        tally = self.tally or BatchTally()
        each = (tally.answered + tally.failed) / self.seconds if self.seconds else 0.0
        return {
            "requests": self.requests,
            "found": self.found,
            "answered": tally.answered,
            "failed": tally.failed,
            "failed_before": self.failed_before,
            "missing": self.missing,
            "tried_again": tally.again,
            "prompt_tokens": tally.prompt_tokens,
            "completion_tokens": tally.completion_tokens,
            "seconds": round(self.seconds, 3),
            "requests_per_second": round(each, 3),
            "tokens_per_second": round(tally.completion_tokens / self.seconds, 3) if self.seconds else 0.0,
            "interrupted": self.interrupted,
            "problem": self.problem or None,
        }


def hold(order: BatchOrder) -> BatchTotals:
    """BatchRefused before anything runs; what ends the run afterwards stands in the totals."""
    mesh = order.mesh()
    source = BatchInput.checked(order.input)
    with opened_ledger(order.input, order.output, order.errors) as ledger:
        ledger.take_up(source.numbers.keys(), force=order.force)
        totals = BatchTotals(len(source.numbers), ledger.found, ledger.failed)
        if ledger.torn_bytes:
            say(f"cut off {ledger.torn_bytes} bytes of a torn last line")
        if ledger.found:
            failed = f", {ledger.failed} of them failed" if ledger.failed else ""
            say(f"{ledger.found} of {totals.requests} requests have their outcome already{failed}")
        if totals.missing:
            asyncio.run(_run(order, source, ledger, mesh, totals))
            if totals.missing and not (totals.interrupted or totals.problem):
                totals.problem = f"{order.input} was changed during the run: it holds fewer requests than at its begin"
            try:
                ledger.sync()
            except BatchStopped as stopped:
                totals.problem = totals.problem or str(stopped)
    return totals


async def _run(
    order: BatchOrder,
    source: BatchInput,
    ledger: BatchLedger,
    mesh: AbstractAsyncContextManager[BatchMesh],
    totals: BatchTotals,
) -> None:
    with interruptible() as seen:
        try:
            async with mesh as found:
                concurrency = min(order.concurrency or found.concurrency, totals.missing)
                say(f"asking {totals.missing} requests, {concurrency} at a time")
                await _ask_all(order, source, ledger, found, concurrency, totals)
        except asyncio.CancelledError:
            if not seen.is_set():
                raise
            totals.interrupted = True
        except BatchStopped as stopped:
            totals.problem = str(stopped)


async def _ask_all(
    order: BatchOrder,
    source: BatchInput,
    ledger: BatchLedger,
    mesh: BatchMesh,
    concurrency: int,
    totals: BatchTotals,
) -> None:
    with BatchProgress(totals.requests, totals.found, err, say) as progress:
        runner = BatchRunner(
            mesh.asker,
            ledger,
            progress,
            rule=RetryRule(order.tries),
            random=Random(os.getpid()),  # runs beside each other come back at different times
            priority=PRIORITY if order.priority is None else order.priority,
            drops_priority=order.priority is None,
        )
        totals.tally = runner.tally
        try:
            await runner.run(source.requests(ledger.has), concurrency)
        finally:
            totals.seconds = progress.seconds
