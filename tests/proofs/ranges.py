"""Half-open ranges of numbers, `(first, end)`: which seeds, cases or minutes of a proof are done.

A set of ranges is a sorted list in which no two overlap or touch."""

from collections.abc import Iterable

Range = tuple[int, int]


def merged(ranges: Iterable[Range]) -> list[Range]:
    """The same numbers, each once."""
    found: list[Range] = []
    for first, end in sorted(ranges):
        if first >= end:
            continue
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((first, end))
    return found


def total(ranges: Iterable[Range]) -> int:
    return sum(end - first for first, end in merged(ranges))


def first_gap(taken: Iterable[Range], end: int, most: int) -> Range | None:
    """The first numbers below `end` that are not taken, at most `most` of them; None: all are taken."""
    at = 0
    for first, stop in merged(taken):
        if at < min(first, end):
            return at, min(first, at + most, end)
        at = stop
    return (at, min(at + most, end)) if at < end else None


def without(whole: Range, gone: Iterable[Range]) -> list[Range]:
    """The parts of a range that are in none of the others."""
    left, at = list[Range](), whole[0]
    for first, end in merged(gone):
        left.append((at, min(first, whole[1])))
        at = max(at, end)
    return merged([*left, (at, whole[1])])
