"""Ids of spans. They follow from the ticket and from names, so that a tree made twice is equal."""

import hashlib
from functools import lru_cache
from zlib import crc32

from mesh.messages.jobs import Ticket, Tier

_SPREAD, _SIXTY_FOUR_BITS = 0x9E3779B97F4A7C15, 2**64 - 1


def attempt_id(ticket: Ticket, tier: Tier) -> int:
    """The span id of an attempt at a worker: 64 bits that follow from its ticket."""
    digest = hashlib.blake2b(ticket.pack() + tier.value.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") or 1


def child_id(base: int, name: str, count: int = 1) -> int:
    """The id of the span of this name below the one of id `base`; `count` numbers those of one name."""
    return (base ^ _mark(name, count)) & _SIXTY_FOUR_BITS or 1


@lru_cache(maxsize=1024)  # names and counts are few
def _mark(name: str, count: int) -> int:
    return crc32(f"{name}/{count}".encode()) * _SPREAD
