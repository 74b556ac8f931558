"""Spans are checked before they count, asked for again when damaged or missing, and given up after a few times."""

import asyncio
from typing import Any

from decode_svc.handoff.spans import REPAIRS, Spans
from decode_svc.request.requests import DecodePhase, DecodeRequest, OpenLanding, PageOwner
from mesh.messages.kv_messages import Commit, Resend
from tests.sim.loop import virtual
from tests.unit.decode_svc.fakes import PAGE, WRITER, Surroundings


def opened(**more: Any) -> tuple[Surroundings, Spans, DecodeRequest, OpenLanding]:
    """A landing of two pages, the prompt's second and third; decode has the first."""
    around = Surroundings(**more)
    one = around.add(1, tokens=3 * PAGE)
    shared, pages = around.pages.take(1, b""), around.pages.land(2, PageOwner(one.ticket, WRITER, "fake", 0), b"")
    assert shared is not None and pages is not None
    one.pages = list(shared)
    one.enter(DecodePhase.LANDING)
    one.landing = OpenLanding(one.ticket, WRITER, "fake", 1, pages, 0.0, 0.0, [0, 0], 0b11)
    spans = Spans(
        around.pages, around.pool, around.sessions, horizon=around.room.horizon, host=around.host, rules=around.rules
    )
    return around, spans, one, one.landing


def sums(around: Surroundings, landing: OpenLanding, first: int = 0, layers: int = 2) -> list[int]:
    return [around.pool.checksum(page, first, layers) for page in landing.pages]


async def test_layers_are_valid_one_by_one() -> None:
    around, spans, one, landing = opened()
    spans.arrived(one, landing, [1, 2], 1, 1, sums(around, landing, 1, 1))
    assert landing.valid == [0b10, 0b10] and not landing.complete
    spans.arrived(one, landing, [2], 0, 1, sums(around, landing, 0, 1)[1:])
    assert landing.valid == [0b10, 0b11] and around.sent_names == []


async def test_a_damaged_span_is_asked_for_at_once_and_an_older_commit_does_not_count() -> None:
    around, spans, one, landing = opened()
    right, wrong = sums(around, landing)
    spans.arrived(one, landing, [1, 2], 0, 2, [right, wrong + 1])
    assert landing.valid == [0b11, 0] and around.prefill.sent == [Resend(one.ticket, 1, 0, 2, (2,))]
    spans.committed(one, landing, Commit(one.ticket, 0, None))
    assert landing.commit is None
    spans.arrived(one, landing, [2], 0, 2, [wrong])
    spans.committed(one, landing, Commit(one.ticket, 1, None))
    assert around.host.running == [one]


async def test_spans_of_pages_outside_the_landing_are_ignored() -> None:
    around, spans, one, landing = opened()
    spans.arrived(one, landing, [0, 3], 0, 2, [1, 1])
    assert landing.valid == [0, 0] and around.sent_names == []


async def test_what_is_never_repaired_is_computed_here() -> None:
    around, spans, one, landing = opened()
    spans.arrived(one, landing, [2], 0, 2, sums(around, landing)[1:])
    for round in range(REPAIRS + 1):
        assert one.phase is DecodePhase.LANDING
        spans.committed(one, landing, Commit(one.ticket, round, None))
    assert around.sent_names == ["Resend"] * REPAIRS + ["Landed"]
    assert one.phase is DecodePhase.RUNNING and one.filled == PAGE, "only pages before the first gap count"
    assert (spans.admitted, spans.whole) == (1, 0)


async def test_a_span_that_arrives_damaged_again_and_again_is_computed_here() -> None:
    around, spans, one, landing = opened()
    right, wrong = sums(around, landing)
    spans.arrived(one, landing, [1], 0, 2, [right])
    for _ in range(REPAIRS + 1):
        spans.arrived(one, landing, [2], 0, 2, [wrong + 1])
    assert one.phase is DecodePhase.LANDING and around.sent_names == ["Resend"] * REPAIRS
    spans.committed(one, landing, Commit(one.ticket, REPAIRS, None))
    assert one.phase is DecodePhase.RUNNING and one.filled == 2 * PAGE and around.sent_names[-1] == "Landed"


@virtual
async def test_a_two_sided_span_is_missing_only_after_a_timer() -> None:
    around, spans, one, landing = opened(one_sided=False)
    spans.arrived(one, landing, [1], 0, 2, sums(around, landing)[:1])
    spans.committed(one, landing, Commit(one.ticket, 0, None))
    await asyncio.sleep(around.rules.missing_seconds * 0.9)
    assert around.sent_names == []
    await asyncio.sleep(around.rules.missing_seconds * 0.2)
    assert around.prefill.sent == [Resend(one.ticket, 1, 0, 2, (2,))]
