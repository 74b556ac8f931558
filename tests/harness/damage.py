"""Damages pages on their way: bits flip, pages are torn, or hold another page's bytes. Only a decode worker of a test
has this; it strikes between the arrival of a span and the check of its checksum."""

import logging
import os
from collections.abc import Sequence
from random import Random

from decode_svc.handoff.spans import Spans

log = logging.getLogger("baton.damage")

KINDS = (
    "flip",  # one bit is another one
    "torn",  # the second half is that of another page, as if the write had stopped half-way
    "stale",  # the page holds what another request had there: freed, and used again
)


def install(share: float) -> None:
    """Damage a page in so many of the checks. A guard that a mutant has replaced stays replaced."""
    check, random = Spans.check, Random(os.getpid())

    def damaged(spans: Spans, stated: Sequence[tuple[int, int]], first: int, layers: int) -> list[bool]:
        if stated and random.random() < share:
            kind, page = random.choice(KINDS), random.choice(stated)[0]
            if strike(spans, page, first, layers, kind, random):
                log.debug("page %d: %s", page, kind, extra={"event": "page_damaged", "kind": kind})
        return check(spans, stated, first, layers)

    Spans.check = damaged  # type: ignore[method-assign, assignment]


def strike(spans: Spans, page: int, first: int, layers: int, kind: str, random: Random) -> bool:
    """False: the bytes are the same as before."""
    view, before = spans._pool.view(page, first, layers), bytes(spans._pool.view(page, first, layers))
    other = bytes(spans._pool.view(random.randrange(spans._pool.pages), first, layers))
    half = len(before) // 2
    if kind == "flip":
        view[random.randrange(len(before))] ^= 1 << random.randrange(8)
    elif kind == "torn":
        view[half:] = other[half:]
    else:
        view[:] = other
    return bytes(view) != before
