"""State that speculation keeps for each request, and the part of a request that it reads."""

from dataclasses import dataclass, field
from typing import Protocol

from decode_svc.speculation.draft_length import Acceptance
from decode_svc.speculation.lookup import Lookup


@dataclass(slots=True)
class Drafts:
    next: tuple[int, ...] = ()  # drafts that the next step verifies after the last token
    read: int = 0  # slots whose tokens the draft model has read; beyond `filled` they are its own proposals
    acceptance: Acceptance = field(default_factory=Acceptance)
    lookup: Lookup = field(default_factory=Lookup)
    drafted: int = 0  # drafts verified so far
    accepted: int = 0  # how many of them the model accepted


class DraftedText(Protocol):
    """A running request: its text, and the pages that hold its KV."""

    tokens: list[int]
    filled: int  # tokens whose KV is in the pages
    pages: list[int]
    hashes: list[bytes]  # block hashes of the pages that were published or found
    drafts: Drafts

    @property
    def left(self) -> int:
        """Tokens that it may still emit."""
