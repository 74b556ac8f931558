"""Runs the batches of a gateway: takes one that no living process runs, asks its requests, and writes their outcomes.

The files of outcomes are the truth (gateway/batches/ledger.py): a process that takes a batch over reads there what is
done. A lock on these files keeps a process that was believed dead from writing beside its successor."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

from gateway.batches.input_file import BatchInput
from gateway.batches.ledger import BatchLedger, opened_ledger
from gateway.batches.lines import BatchLine, LineFault
from gateway.batches.outcome import BatchAnswer, BatchOutcome, NoAnswer
from gateway.batches.problems import BatchBusy, BatchRefused, BatchStopped
from gateway.batches.records import OUTPUT, BatchCounts, BatchFault, BatchRecord
from gateway.batches.retrying import RetryRule
from gateway.batches.runner import Asker, BatchRunner, BatchTally
from gateway.batches.store import BatchStore, NoRoom
from gateway.stored.database import StoreUnusable

log = logging.getLogger("baton.gateway")

MOST_RUNNING = 8  # batches that one process runs at once
LOOK_SECONDS = 1.0  # between two looks for a batch that nobody runs, and between two beats
EXPIRED = NoAnswer("batch_expired", "the batch's completion window ended before this request was answered", final=True)
DISK_FULL = "the bound of all files (files_mib) is reached; delete files, and send the requests without outcome again"


@dataclass(slots=True)
class RunningBatch:
    """A batch that this process runs."""

    owner: str
    record: BatchRecord
    found: int = 0  # requests that had their outcome before this process took the batch
    failed: int = 0  # requests among these that failed
    tally: BatchTally | None = None
    reason: str = ""  # why the run was ended before its last request: cancelled | expired | full | lost

    def note(self, record: BatchRecord) -> None:
        """Write the counts so far into the record."""
        tally = self.tally or BatchTally()
        total, failed = record.request_counts.total, self.failed + tally.failed
        done = self.found - self.failed + tally.answered
        record.request_counts = BatchCounts(total=total, completed=done, failed=failed)


class BatchWork:
    def __init__(
        self,
        store: BatchStore,
        asker: Callable[[str], Asker],
        *,
        holder: str,
        concurrency: int,
        most_line_bytes: int,
        random: Random,
    ) -> None:
        """`asker` asks as this tenant; `holder`: the name of this process, which no other one has."""
        self._store, self._asker, self._holder, self._random = store, asker, holder, random
        self._concurrency, self._most_line_bytes = concurrency, most_line_bytes
        self._came, self._turns = asyncio.Event(), asyncio.Semaphore(concurrency)
        self._tasks = set[asyncio.Task[None]]()

    def wake(self) -> None:
        """A batch has come."""
        self._came.set()

    async def run(self) -> None:
        """Run the batches that come, until cancelled."""
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await self._came.wait()
                self._came.clear()
                try:
                    await self._begin_some()
                except StoreUnusable as error:
                    log.warning("batches cannot be read: %s", error)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _begin_some(self) -> None:
        while len(self._tasks) < MOST_RUNNING and not self._store.is_empty:
            if (found := await self._store.claim(self._holder)) is None:
                return
            task = asyncio.create_task(self._run_logged(RunningBatch(*found)))
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._came.set()

    async def _run_logged(self, batch: RunningBatch) -> None:
        """Run the batch; a disk that fails leaves it to the next process that takes it."""
        try:
            await self._run_one(batch)
        except StoreUnusable as error:
            log.warning("the batch %s cannot go on now: %s", batch.record.id, error)

    async def _run_one(self, batch: RunningBatch) -> None:
        running = asyncio.create_task(self._outcomes(batch))
        try:
            await self._watch(batch, running)
            if batch.reason != "lost":
                await self._end(batch, running)
        except asyncio.CancelledError:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await asyncio.shield(self._store.release(batch.record.id, batch.owner, self._holder))
            raise
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def _watch(self, batch: RunningBatch, running: asyncio.Task[None]) -> None:
        """Until the run is over: renew the beat, and end the run where the batch is cancelled or its time is over."""
        while not running.done():
            await asyncio.wait([running], timeout=LOOK_SECONDS)
            if running.done():
                return
            record = await self._store.beat(batch.record.id, batch.owner, self._holder, batch.note)
            if record is None:
                batch.reason = "lost"
            elif record.status == "cancelling":
                batch.reason = "cancelled"
            elif self._store.clock() >= record.expires_at:
                batch.reason = "expired"
            elif await self._written(batch) > await self._store.room():
                batch.reason = "full"
            if batch.reason:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                return

    async def _outcomes(self, batch: RunningBatch) -> None:
        """Ask every request that has no outcome yet. BatchRefused, BatchStopped: why there are no more."""
        record, owner = batch.record, batch.owner
        if record.status == "cancelling":
            batch.reason = "cancelled"
            return
        path, size = self._store.path(record.input_file_id, owner), self._most_line_bytes
        source = await asyncio.to_thread(BatchInput.checked, path, size, url=record.endpoint)

        def begins(record: BatchRecord) -> None:
            if record.status == "validating":
                record.enter("in_progress", self._store.clock())
            record.request_counts.total = len(source.numbers)

        await self._store.change(record.id, owner, begins)
        output, errors = self._paths(batch)
        with opened_ledger(path, output, errors) as ledger:
            await asyncio.to_thread(ledger.take_up, source.numbers.keys(), force=False)
            batch.found, batch.failed = ledger.found, ledger.failed
            if self._store.clock() >= record.expires_at:
                batch.reason = "expired"
            else:
                await self._ask(batch, ledger, source)
            await asyncio.to_thread(ledger.sync)

    async def _ask(self, batch: RunningBatch, ledger: BatchLedger, source: BatchInput) -> None:
        runner = BatchRunner(
            _InTurn(self._asker(batch.owner), self._turns),
            ledger,
            _Unshown(),
            rule=RetryRule(),
            random=Random(self._random.getrandbits(64)),
            drops_priority=True,
        )
        batch.tally = runner.tally
        await runner.run(source.requests(ledger.has), self._concurrency)

    async def _end(self, batch: RunningBatch, running: asyncio.Task[None]) -> None:
        """The batch's last record, with the files of its outcomes."""
        now, faults = self._store.clock(), list[BatchFault]()
        error = None if running.cancelled() else running.exception()
        if isinstance(error, BatchBusy):
            return  # the process that ran it lives, and may go on or end
        if isinstance(error, BatchRefused):
            faults = [fault_of(each) for each in error.faults] or [
                BatchFault(code="invalid_input", message=_plain(error))
            ]
        elif isinstance(error, BatchStopped):
            faults = [BatchFault(code="stopped", message=_plain(error))]
        elif error is not None:
            log.error("the batch %s failed", batch.record.id, exc_info=error)
            faults = [BatchFault(code="internal", message="the gateway failed; its log says why")]
        if batch.reason == "full":
            faults = [BatchFault(code="files_full", message=DISK_FULL)]
        if batch.reason == "expired":
            await asyncio.to_thread(self._expire, batch)
        output, errors = await self._published(batch)

        def ends(record: BatchRecord) -> None:
            batch.note(record)
            record.output_file_id, record.error_file_id = output, errors
            if faults:
                record.fail(now, *faults)
            elif batch.reason in ("cancelled", "expired"):
                record.enter("cancelled" if batch.reason == "cancelled" else "expired", now)
            else:
                record.enter("finalizing", now)
                record.enter("completed", now)

        if await self._store.beat(batch.record.id, batch.owner, self._holder, ends) is not None:
            for path in self._paths(batch):
                path.unlink(missing_ok=True)

    def _expire(self, batch: RunningBatch) -> None:
        """Requests without an outcome have failed."""
        path, (output, errors) = self._store.path(batch.record.input_file_id, batch.owner), self._paths(batch)
        source = BatchInput.checked(path, self._most_line_bytes, url=batch.record.endpoint)
        with opened_ledger(path, output, errors) as ledger:
            ledger.take_up(source.numbers.keys(), force=False)
            for line in source.requests(ledger.has):
                ledger.write(_expired(line))
            ledger.sync()
            batch.found, batch.failed, batch.tally = ledger.found, ledger.failed, BatchTally()
            batch.tally.failed = len(source.numbers) - ledger.found

    async def _published(self, batch: RunningBatch) -> tuple[str | None, str | None]:
        """The ids of the files that hold outcomes."""
        found = list[str | None]()
        for path, kind in zip(self._paths(batch), ("output", "errors"), strict=True):
            found.append(None)
            if path.exists() and path.stat().st_size:
                id, name = _id_of(batch.record.id, kind), f"{batch.record.id}_{kind}.jsonl"
                with suppress(NoRoom):
                    await self._store.add_file(batch.owner, path, name=name, purpose=OUTPUT, id=id)
                    found[-1] = id
        return found[0], found[1]

    async def _written(self, batch: RunningBatch) -> int:
        return sum(path.stat().st_size for path in self._paths(batch) if path.exists())

    def _paths(self, batch: RunningBatch) -> tuple[Path, Path]:
        """The files of outcomes, which are no files of the client yet."""
        base = self._store.path(batch.record.id, batch.owner)
        return base.with_suffix(".output"), base.with_suffix(".errors")


class _InTurn:
    """Asks when a turn is free, so that all batches of this process together have as many requests under way as one
    may have."""

    def __init__(self, asker: Asker, turns: asyncio.Semaphore) -> None:
        self._asker, self._turns = asker, turns

    async def ask(self, url: str, body: bytes) -> BatchAnswer:
        async with self._turns:
            return await self._asker.ask(url, body)


class _Unshown:
    """Progress that nobody watches: the beat writes it into the record."""

    def settled(self, tally: BatchTally) -> None:
        pass

    def waits(self, tally: BatchTally, why: str) -> None:
        pass


def fault_of(fault: LineFault) -> BatchFault:
    return BatchFault(code="invalid_line", line=fault.line, message=str(fault), param=fault.field or None)


def _expired(line: BatchLine) -> BatchOutcome:
    return BatchOutcome(line.custom_id, None, EXPIRED)


def _id_of(batch_id: str, kind: str) -> str:
    return f"file-{batch_id.removeprefix('batch_')}-{kind}"


def _plain(error: Exception) -> str:
    """The message without paths of this machine."""
    words = str(error).split()
    return " ".join("the file" if word.startswith("/") else word for word in words)
