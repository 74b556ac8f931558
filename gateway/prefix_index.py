"""Which workers have how many leading blocks of a prompt: one look-up for all workers together.

Step 2 of a request's life. Each block hash names the set of workers whose prefix caches hold it, as the bits of one
number. A prompt's sets are intersected from its first block on; a worker leaves at the first block that it lacks, and
what it had until then is its answer, even if it holds later blocks. The work grows with the prompt's cached blocks,
never with the number of workers or of blocks that are cached anywhere."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, repeat
from operator import and_


@dataclass(frozen=True, slots=True)
class Leading:
    """Workers that hold exactly so many leading blocks of a prompt."""

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
        held = list(accumulate(map(self._holders.get, hashes, repeat(0)), and_))  # those that hold all blocks up to i
        found, start = list[Leading](), 0
        while start < len(held) and (workers := held[start]):
            start = bisect_left(held, True, lo=start, key=workers.__ne__)
            left = workers & ~held[start] if start < len(held) else workers
            found.append(Leading(start, left))
        return found

    def held(self, known: list[bytes], following: Iterator[bytes]) -> list[bytes]:
        """`known`, extended by the `following` hashes up to the first that no worker holds, which is the last one. What
        stands behind it decides nothing, so it is not computed."""
        while not known or known[-1] in self._holders:
            if (block := next(following, None)) is None:
                break
            known.append(block)
        return known
