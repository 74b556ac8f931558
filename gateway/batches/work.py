"""Runs the batches of a gateway: takes one that no living process runs, asks its requests, and writes their outcomes.

The files of outcomes are the truth (gateway/batches/ledger.py): a process that takes a batch over reads there what is
done. A lock on these files keeps a process that was believed dead from writing beside its successor."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random

from gateway.batches.ending import INPUT_GONE, BatchEnding, RunningBatch
from gateway.batches.input_file import BatchInput
from gateway.batches.ledger import BatchLedger, opened_ledger
from gateway.batches.outcome import BatchAnswer
from gateway.batches.problems import BatchBusy, BatchRefused, DiskFails
from gateway.batches.records import BatchRecord
from gateway.batches.retrying import RetryRule
from gateway.batches.runner import Asker, BatchRunner, BatchTally
from gateway.batches.store import BatchStore
from gateway.stored.database import StoreUnusable

log = logging.getLogger("baton.gateway")

MOST_RUNNING, MOST_OF_TENANT = 32, 8  # batches that one process runs at once
LOOK_SECONDS = 1.0  # between two looks for a batch that nobody runs, and between two beats
SWEEP_SECONDS = 3600.0  # between two looks for what killed processes have left


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
        self._came, self._turns = asyncio.Event(), _Turns(concurrency)
        self._ending = BatchEnding(store, most_line_bytes)
        self._tasks, self._run = set[asyncio.Task[None]](), Counter[str]()  # the latter by tenant

    def wake(self) -> None:
        """A batch has come."""
        self._came.set()

    def leave(self) -> None:
        """The process will end: no further request is asked, and those that are under way may end. What is missing is
        another process's when `run` is cancelled."""
        self._turns.leaves = True

    async def run(self) -> None:
        """Run the batches that come, until cancelled."""
        loop = asyncio.get_running_loop()
        troubled, swept = False, -SWEEP_SECONDS
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await self._came.wait()
                self._came.clear()
                try:
                    await self._begin_some()
                    if loop.time() - swept >= SWEEP_SECONDS and not self._store.is_empty:
                        await self._store.sweep()
                        swept = loop.time()
                    troubled = False
                except (StoreUnusable, OSError) as error:
                    if not troubled:
                        log.warning("batches cannot be read, see the setting files_folder: %s", error)
                    troubled = True
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _begin_some(self) -> None:
        while len(self._tasks) < MOST_RUNNING and not self._turns.leaves and not self._store.is_empty:
            full = [owner for owner, count in self._run.items() if count >= MOST_OF_TENANT]
            if (found := await self._store.claim(self._holder, full)) is None:
                return
            batch = RunningBatch(*found)
            self._run[batch.owner] += 1
            task = asyncio.create_task(self._run_logged(batch))
            self._tasks.add(task)
            task.add_done_callback(partial(self._ended, batch.owner))

    def _ended(self, owner: str, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._run[owner] -= 1
        self._came.set()

    async def _run_logged(self, batch: RunningBatch) -> None:
        """Run the batch; a disk that fails leaves it to the next process that takes it."""
        try:
            await self._run_one(batch)
        except (StoreUnusable, DiskFails, OSError) as error:
            log.warning("the batch %s cannot go on now: %s", batch.record.id, error)
        except Exception:
            log.exception("the batch %s cannot go on now", batch.record.id)

    async def _run_one(self, batch: RunningBatch) -> None:
        running = asyncio.create_task(self._outcomes(batch))
        try:
            await self._watch(batch, running)
            error = None if running.cancelled() else running.exception()
            if isinstance(error, DiskFails):
                raise error
            if batch.reason != "lost" and not isinstance(error, BatchBusy):  # else its process lives, and goes on
                await self._ending.end(batch, self._holder, error)
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
            elif await self._store.room(batch.owner) < 0:
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
        if not path.exists():
            raise BatchRefused(INPUT_GONE)
        source = await asyncio.to_thread(BatchInput.checked, path, size, url=record.endpoint)

        def begins(record: BatchRecord) -> None:
            if record.status == "validating":
                record.enter("in_progress", self._store.clock())
            record.request_counts.total = len(source.numbers)

        await self._store.change(record.id, owner, begins)
        with opened_ledger(path, *self._store.outcomes(record.id, owner)) as ledger:
            await asyncio.to_thread(ledger.take_up, source.numbers.keys(), force=False)
            batch.found, batch.failed, batch.taken_up = ledger.found, ledger.failed, True
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
            threaded=True,
        )
        batch.tally = runner.tally
        await runner.run(source.requests(ledger.has), self._concurrency)


class _Turns:
    """All batches of this process together have as many requests under way as one may have; none begins in a process
    that leaves."""

    def __init__(self, count: int) -> None:
        self.free, self.leaves = asyncio.Semaphore(count), False


class _InTurn:
    """Asks when a turn is free."""

    def __init__(self, asker: Asker, turns: _Turns) -> None:
        self._asker, self._turns = asker, turns

    async def ask(self, url: str, body: bytes) -> BatchAnswer:
        async with self._turns.free:
            if self._turns.leaves:
                await asyncio.Event().wait()  # until the process cancels the run
            return await self._asker.ask(url, body)


class _Unshown:
    """Progress that nobody watches: the beat writes it into the record."""

    def settled(self, tally: BatchTally) -> None:
        pass

    def waits(self, tally: BatchTally, why: str) -> None:
        pass
