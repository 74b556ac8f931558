"""The bytes that files may have: all together, and those of one tenant, who cannot fill the disk for the others."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class FileBounds:
    most_bytes: int  # all files together
    share: float = 1.0  # the part of it that one tenant's files may take

    def most(self, owner: str) -> int:
        """Bytes that the files of this tenant may have; without a tenant, all that there are."""
        return int(self.most_bytes * self.share) if owner else self.most_bytes

    def room(self, held: Counter[str], owner: str) -> int:
        """Bytes that further files of this tenant may have; below zero: it has too many. `held`: bytes by tenant."""
        return min(self.most_bytes - held.total(), self.most(owner) - (held[owner] if owner else 0))


def bytes_of(paths: Iterable[Path]) -> int:
    """Bytes of those files that exist."""
    total = 0
    for path in paths:
        try:
            total += path.stat().st_size
        except OSError:
            continue
    return total
