"""Messages that no decode worker sends end its session, before a step meets them."""

import pytest

from mesh.messages.jobs import Ticket
from mesh.messages.kv_messages import Landing, Resend
from mesh.messages.orders import Open
from mesh.sessions.session import BadMessage
from prefill_svc.prompts import PromptPhase
from tests.unit.prefill_svc.parts import PrefillParts

UNKNOWN = Ticket(99, 1, bytes(16))


async def test_a_message_that_decode_never_sends_is_an_error() -> None:
    parts = PrefillParts()
    with pytest.raises(BadMessage, match="a decode worker does not send Open"):
        parts.handoff.on_message(parts.link, Open(parts.queued().job, None))


@pytest.mark.parametrize(
    ("first_page", "pages", "why"),
    [
        (0, (40,), "are 1 from page 0 on, a prompt of 8 tokens has 2"),
        (0, (40, 40), "names a page twice"),
        (3, (), "are 0"),
    ],
)
async def test_a_landing_that_is_not_the_prompts_is_refused_before_a_step_meets_it(
    first_page: int, pages: tuple[int, ...], why: str
) -> None:
    parts = PrefillParts()
    prompt = parts.asked(tokens=8)
    with pytest.raises(BadMessage, match=f"Landing.pages: {why}"):
        parts.handoff.on_message(parts.link, Landing(prompt.ticket, first_page, pages))
    assert prompt.phase is PromptPhase.ASKED and parts.pool.counts().in_use == 0


@pytest.mark.parametrize(
    ("spans", "why"),
    [
        ((0, 1, (2,)), "Resend.pages: page 2 is not among the 1 of the landing"),
        ((0, 1, (0,)), "Resend.pages: page 0"),
        ((0, 1, ()), "Resend.pages: names no page"),
        ((0, 1, (1, 1)), "Resend.pages: names no page, or one twice"),
        ((1, 2, (1,)), "Resend.first_layer, layers: 1[+]2"),
        ((0, 0, (1,)), "Resend.first_layer, layers: 0[+]0"),
    ],
)
async def test_a_resend_of_spans_that_the_landing_lacks_is_refused(
    spans: tuple[int, int, tuple[int, ...]], why: str
) -> None:
    """A page in front of the landing would be written into its last one; without a page no write leads to Commit."""
    parts = PrefillParts()
    prompt = parts.asked(tokens=8)
    parts.handoff.on_message(parts.link, parts.landing(prompt, 1))
    with pytest.raises(BadMessage, match=why):
        parts.handoff.on_message(parts.link, Resend(prompt.ticket, 1, *spans))
    assert prompt.round == 0 and parts.writer.spans == []


# ---- the link to decode
