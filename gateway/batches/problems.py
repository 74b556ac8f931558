"""The ways in which a batch ends before its last answer. The messages are for users and say what to do."""

from collections.abc import Sequence

from gateway.batches.lines import LineFault


class BatchRefused(Exception):
    """Nothing ran, and the same call would be refused again: a file or a value is wrong."""

    def __init__(self, message: str, faults: Sequence[LineFault] = ()) -> None:
        super().__init__(message)
        self.faults = tuple(faults)  # the first faults of the input's lines


class BatchBusy(BatchRefused):
    """Another process has the files of this run open."""


class DiskFails(Exception):
    """The disk takes or gives nothing now; it may do so later."""


class BatchStopped(Exception):
    """The run ended early. The files hold whole lines, and the same call goes on behind them."""


class LedgerUnopened(DiskFails, BatchRefused):
    """A file of outcomes cannot be opened."""


class LedgerUnwritable(DiskFails, BatchStopped):
    """A file of outcomes takes no further line."""
