"""Pages between pools in the shared memory of one host: the writer maps decode's pool and copies straight in.

Handshake, death notice and quarantine, which a GPU's memory needs as well, are in `kvtransfer/mapped.py` and
`kvtransfer/mapped_writer.py`."""

from collections.abc import Sequence

import numpy as np

import baton_kernels
from kvtransfer.mapped import MappedTransport
from kvtransfer.mapped_writer import Attach
from kvtransfer.pool import KEY_BYTES, SharedPool, attach, page_addresses, span_table
from kvtransfer.span_reader import Converted
from kvtransfer.transfer import Pool, Span


class SharedMemory(MappedTransport):
    name = "shm"
    kind = b"SHM1"

    def mappable(self, pool: Pool) -> SharedPool:
        if not isinstance(pool, SharedPool):
            raise TypeError(f"shared memory receives into a SharedPool, not into {type(pool).__name__}")
        return pool

    def into(self, pool: Pool) -> Attach:
        return lambda fd, shape, pages: HostCopies(pool, attach(fd, shape, pages))


class HostCopies:
    """Copies into a pool in shared memory. Where the pages differ, each is converted in this process's own memory, from
    which the same copy as ever takes it."""

    def __init__(self, source: Pool, target: SharedPool) -> None:
        self._source = source  # held, because its memory must outlive the copies
        self._target = target
        self._converted = Converted(source, target.shape) if source.shape != target.shape else None
        self._from, self._to = page_addresses(source), page_addresses(target)

    def copy(self, spans: Sequence[Span]) -> tuple[int, ...]:
        table = span_table(spans, self._source, self._target.pages)
        if self._converted is not None:
            return tuple(self._copy_converted(span, self._converted) for span in spans)
        source, target, layers = table[:, 0], table[:, 1], table[:, 2] << 32 | table[:, 3]
        sums = np.zeros(len(spans), np.uint64)
        for group in np.unique(layers).tolist():
            first, count = group >> 32, group & 0xFFFFFFFF
            same = np.flatnonzero(layers == group)
            offset, length = self._source.shape.place(first, count)
            from_, to = self._from[source[same]] + offset, self._to[target[same]] + offset
            part = np.zeros(len(same), np.uint64)
            baton_kernels.scatter(to, from_, length, np.full(len(same), offset // KEY_BYTES), part)
            sums[same] = part
        return tuple(sums.tolist())

    def _copy_converted(self, span: Span, source: Converted) -> int:
        made, offset = source.convert(span), self._target.shape.before(span.first_layer)
        to, from_ = self._to[[span.target]] + offset, np.array([made.ctypes.data], np.int64)
        found = np.zeros(1, np.uint64)
        baton_kernels.scatter(to, from_, len(made), np.array([offset // KEY_BYTES], np.int64), found)
        return int(found[0])

    def close(self) -> None:
        self._target.close()
