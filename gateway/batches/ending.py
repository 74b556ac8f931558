"""The end of a batch: its last record, and the files of its outcomes.

What these files hold counts, whatever ended the batch: a run that was ended before it had read them reads them now."""

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass

from gateway.batches.input_file import BatchInput
from gateway.batches.ledger import BatchLedger, opened_ledger
from gateway.batches.lines import LineFault
from gateway.batches.outcome import BatchOutcome, NoAnswer
from gateway.batches.problems import BatchRefused, BatchStopped, DiskFails
from gateway.batches.records import OUTPUT, BatchCounts, BatchFault, BatchRecord
from gateway.batches.runner import BatchTally
from gateway.batches.store import BatchStore

log = logging.getLogger("baton.gateway")

EXPIRED = NoAnswer("batch_expired", "the batch's completion window ended before this request was answered", final=True)
FILES_FULL = (
    "the bound of all files (files_mib), or of one tenant's (files_share), is reached; delete files, and send the "
    "requests without outcome again"
)
INPUT_GONE = "the input file was deleted or is too old (file_days); upload it again, and begin a new batch"


@dataclass(slots=True)
class RunningBatch:
    """A batch that this process runs."""

    owner: str
    record: BatchRecord
    found: int = 0  # requests that had their outcome before this process took the batch
    failed: int = 0  # requests among these that failed
    tally: BatchTally | None = None
    total: int = 0  # requests of the input; 0: as the record says
    taken_up: bool = False  # the files of outcomes were read
    reason: str = ""  # why the run was ended before its last request: cancelled | expired | full | lost

    def note(self, record: BatchRecord) -> None:
        """Write the counts so far into the record."""
        tally = self.tally or BatchTally()
        total, failed = self.total or record.request_counts.total, self.failed + tally.failed
        done = self.found - self.failed + tally.answered
        record.request_counts = BatchCounts(total=total, completed=done, failed=failed)


class BatchEnding:
    def __init__(self, store: BatchStore, most_line_bytes: int) -> None:
        self._store, self._most_line_bytes = store, most_line_bytes

    async def end(self, batch: RunningBatch, holder: str, error: BaseException | None) -> None:
        """`error`: of the run. BatchRefused, BatchStopped: the files of outcomes cannot be used now."""
        faults = _faults(batch, error)
        if batch.reason == "expired" or not batch.taken_up:
            faults += await asyncio.to_thread(self._settle, batch)
        output, errors = await self._published(batch)
        now = self._store.clock()

        def ends(record: BatchRecord) -> None:
            batch.note(record)
            record.output_file_id, record.error_file_id = output, errors
            if batch.reason in ("cancelled", "expired"):
                record.note_faults(*faults)
                record.enter("cancelled" if batch.reason == "cancelled" else "expired", now)
            elif faults:
                record.note_faults(*faults)
                record.enter("failed", now)
            else:
                record.enter("finalizing", now)
                record.enter("completed", now)

        if await self._store.beat(batch.record.id, batch.owner, holder, ends) is not None:
            for path in self._store.outcomes(batch.record.id, batch.owner):
                path.unlink(missing_ok=True)

    def _settle(self, batch: RunningBatch) -> list[BatchFault]:
        """Count the outcomes that stand in the files; those that are missing have failed in an expired batch."""
        path = self._store.path(batch.record.input_file_id, batch.owner)
        with opened_ledger(path, *self._store.outcomes(batch.record.id, batch.owner)) as ledger:
            ledger.take_up(None, force=True)
            batch.found, batch.failed, batch.tally = ledger.found, ledger.failed, BatchTally()
            if batch.reason != "expired":
                return []
            try:
                batch.tally.failed = self._expire(batch, ledger)
            except DiskFails:
                raise
            except (BatchRefused, BatchStopped) as error:
                return faults_of(error) if path.exists() else [BatchFault(code="invalid_input", message=INPUT_GONE)]
            finally:
                ledger.sync()
        return []

    def _expire(self, batch: RunningBatch, ledger: BatchLedger) -> int:
        path, count = self._store.path(batch.record.input_file_id, batch.owner), 0
        source = BatchInput.checked(path, self._most_line_bytes, url=batch.record.endpoint)
        for line in source.requests(ledger.has):
            ledger.write(BatchOutcome(line.custom_id, None, EXPIRED))
            count += 1
        batch.total = len(source.numbers)
        return count

    async def _published(self, batch: RunningBatch) -> tuple[str | None, str | None]:
        """The ids of the files that hold outcomes. They may go beyond the bound of all files: what was computed is not
        lost."""
        found, paths = list[str | None](), self._store.outcomes(batch.record.id, batch.owner)
        for path, kind in zip(paths, ("output", "errors"), strict=True):
            found.append(None)
            if path.exists() and path.stat().st_size:
                id, name = _id_of(batch.record.id, kind), f"{batch.record.id}_{kind}.jsonl"
                with suppress(FileNotFoundError):
                    await self._store.add_file(batch.owner, path, name=name, purpose=OUTPUT, id=id, bounded=False)
                    found[-1] = id
        return found[0], found[1]


def _faults(batch: RunningBatch, error: BaseException | None) -> list[BatchFault]:
    """Why the batch has failed; empty: it has not."""
    if batch.reason == "full":
        return [BatchFault(code="files_full", message=FILES_FULL)]
    if isinstance(error, BatchRefused | BatchStopped):
        return faults_of(error)
    if error is None or batch.reason:
        return []
    log.error("the batch %s failed", batch.record.id, exc_info=error)
    return [BatchFault(code="internal", message="the gateway failed; its log says why")]


def faults_of(error: BatchRefused | BatchStopped) -> list[BatchFault]:
    if isinstance(error, BatchStopped):
        return [BatchFault(code="stopped", message=_plain(error))]
    return [fault_of(each) for each in error.faults] or [BatchFault(code="invalid_input", message=_plain(error))]


def fault_of(fault: LineFault) -> BatchFault:
    return BatchFault(code="invalid_line", line=fault.line, message=str(fault), param=fault.field or None)


def _id_of(batch_id: str, kind: str) -> str:
    return f"file-{batch_id.removeprefix('batch_')}-{kind}"


def _plain(error: Exception) -> str:
    """The message without paths of this machine."""
    words = str(error).split()
    return " ".join("the file" if word.startswith("/") else word for word in words)
