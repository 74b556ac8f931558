"""Who may have pages now: all or none for a whole prompt, after what running requests need for their next page.

A request that got Later keeps its place: a few younger ones may pass it, then none until it landed or left."""

from collections.abc import Iterable

from decode_svc.requests import DecodePhase, DecodeRequest


def growth(requests: Iterable[DecodeRequest], page_tokens: int) -> int:
    """Pages that running requests need for their next token."""
    return sum(
        r.phase is DecodePhase.RUNNING and r.filled + max(1, r.pending) > len(r.pages) * page_tokens for r in requests
    )


def may_land(
    request: DecodeRequest,
    requests: Iterable[DecodeRequest],
    *,
    lacking: int,
    available: int,
    page_tokens: int,
    max_batch: int,
    overtakes: int,
) -> bool:
    """Decide, and count whom this landing passes. A refusal is remembered: from then on the request ages."""
    everyone = list(requests)
    waiting = [
        r
        for r in everyone
        if r is not request
        and r.passed is not None
        and r.phase in (DecodePhase.OPEN, DecodePhase.LOCAL)
        and r.seniority < request.seniority
    ]
    blocked = any(r.passed is not None and r.passed >= overtakes for r in waiting)
    crowded = sum(r.phase in (DecodePhase.RUNNING, DecodePhase.LANDING) for r in everyone) >= max_batch
    if blocked or crowded or available < lacking + growth(everyone, page_tokens):
        request.passed = request.passed or 0
        return False
    for older in waiting:
        older.passed = (older.passed or 0) + 1
    return True


def crowd(requests: Iterable[DecodeRequest]) -> tuple[int, int, int]:
    """(requests that wait for room, requests with pages, prompt tokens to be computed here)."""
    everyone = list(requests)
    waiting = sum(r.phase is DecodePhase.LOCAL or r.passed is not None for r in everyone)
    running = sum(r.phase in (DecodePhase.RUNNING, DecodePhase.LANDING) for r in everyone)
    queued = sum(r.pending for r in everyone if r.pending > 1 and r.prefill is None)
    return waiting, running, queued


def victim(request: DecodeRequest, requests: Iterable[DecodeRequest]) -> DecodeRequest | None:
    """The youngest running request that is younger than this one."""
    younger = [r for r in requests if r.phase is DecodePhase.RUNNING and r.seniority > request.seniority]
    return max(younger, key=lambda r: r.seniority, default=None)
