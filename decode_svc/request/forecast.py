"""Foresees how many more pages running requests need together until they end: step 6 of a request's life.

All of them grow by a token in each step, and each gives its pages back at its end. So they need most just before one of
them ends. `decode_svc/request/answer_lengths.py` estimates when that is."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import floor


@dataclass(frozen=True, slots=True)
class GrowingRequest:
    left: int  # tokens that it will still emit
    slots: int  # tokens of its text
    pages: int  # that it has
    shared: int  # pages among them that others may keep at its end


def peak_growth(growing: Iterable[GrowingRequest], page_tokens: int) -> int:
    """The most pages beyond those that they have now, or a few more: each last page counts as just begun."""
    longest_first = sorted(growing, key=lambda each: -each.left)
    freed = sum(each.pages - each.shared for each in longest_first)  # pages back from those that have ended by then
    slots = pages = most = 0
    for count, each in enumerate(longest_first, 1):
        slots, pages = slots + each.slots, pages + each.pages
        freed -= each.pages - each.shared
        needed = (slots + count * (each.left + page_tokens - 1)) / page_tokens - pages - freed
        most = max(most, floor(needed))
    return most
