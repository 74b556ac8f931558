"""Which workers have how many leading blocks of a prompt: one look-up for all workers together.

Step 2 of a request's life. Each block hash names the set of workers whose prefix caches hold it, as the bits of one
number. A cache evicts the last block of a prompt first (engine/pool/pages.py), so the workers that hold a block are
among those that hold the one before it, and the block at which some of them leave is found by halving. The work grows
with the logarithm of the prompt's cached blocks, never with the number of workers or of blocks that are cached
anywhere. A worker that lost a block between two others, which only two computations of one prompt can bring about, may
count with more than it has: the answer is a hint, and the worker computes what it lacks."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple


class Leading(NamedTuple):
    """Workers that hold exactly `blocks` leading blocks of a prompt."""

    blocks: int
    workers: int  # bit i: the worker in slot i of the fleet


class PrefixIndex:
    def __init__(self) -> None:
        self._holders: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._holders)

    def __contains__(self, block: bytes) -> bool:
        return block in self._holders

    def add(self, bit: int, blocks: Iterable[bytes]) -> None:
        """The worker with this bit holds these blocks from now on. Blocks with one holder share its number."""
        holders = self._holders
        for block in blocks:
            others = holders.get(block)
            holders[block] = bit if others is None else others | bit

    def remove(self, bit: int, blocks: Iterable[bytes]) -> None:
        """The worker with this bit holds these blocks no longer."""
        holders = self._holders
        for block in blocks:
            if others := holders.get(block, 0) & ~bit:
                holders[block] = others
            else:
                holders.pop(block, None)

    def leading(self, hashes: Sequence[bytes]) -> list[Leading]:
        """Every worker that holds the first of these blocks, with the number of blocks until the first that it lacks;
        the fewest blocks first."""
        found = list[Leading]()
        start = 0
        get = self._holders.get
        last = len(hashes) - 1
        if last > 0 and hashes[last] not in self._holders:  # as `held` leaves it: no worker has more
            last -= 1
        workers = get(hashes[0], 0) if hashes else 0
        while workers:
            if get(hashes[last], 0) & workers == workers:
                start = last + 1
            else:
                start = bisect_left(
                    hashes, True, lo=start + 1, hi=last, key=lambda block: get(block, 0) & workers != workers
                )
            stay = get(hashes[start], 0) & workers if start < len(hashes) else 0
            found.append(Leading(start, workers & ~stay))
            workers = stay
        return found

    def held(self, known: list[bytes], following: Iterator[bytes]) -> list[bytes]:
        """`known`, extended by the `following` hashes up to the first that no worker holds, which is the last one. What
        stands behind it decides nothing, so it is not computed."""
        while not known or known[-1] in self._holders:
            if (block := next(following, None)) is None:
                break
            known.append(block)
        return known
