"""Files and batches as clients see them: the objects of OpenAI's API, and the steps of a batch's life."""

from typing import Literal

import msgspec

BatchStatus = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]
ACTIVE: tuple[BatchStatus, ...] = ("validating", "in_progress", "finalizing", "cancelling")
PURPOSES = ("batch", "assistants", "fine-tune", "vision", "user_data", "evals")
OUTPUT = "batch_output"


class FileRecord(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"


class BatchFault(msgspec.Struct, kw_only=True):
    code: str
    line: int | None = None
    message: str
    param: str | None = None


class BatchFaults(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[BatchFault]


class BatchCounts(msgspec.Struct, kw_only=True):
    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchRecord(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    errors: BatchFaults | None = None
    input_file_id: str
    completion_window: str
    status: BatchStatus = "validating"
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: BatchCounts = msgspec.field(default_factory=BatchCounts)
    metadata: dict[str, str] | None = None

    @property
    def active(self) -> bool:
        return self.status in ACTIVE

    def enter(self, status: BatchStatus, now: float) -> None:
        """The batch has this status from now on."""
        self.status = status
        setattr(self, f"{status}_at", int(now))

    def note_faults(self, *faults: BatchFault) -> None:
        if faults:
            self.errors = BatchFaults(data=list(faults))
