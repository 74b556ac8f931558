"""Pushing into a decode worker whose pages have another size: the landing counts in decode's pages."""

import random

import pytest

from engine.step.batch import Remaining, chunks
from kvtransfer.transfer import Span
from mesh.messages.kv_messages import Resend, Written
from tests.sim.loop import virtual
from tests.unit.prefill_svc.parts import LAYER_BYTES, LAYERS, PAGE_TOKENS, PrefillParts

LARGER, SMALLER = 2 * PAGE_TOKENS, PAGE_TOKENS // 2


@virtual
async def test_a_larger_page_is_pushed_when_all_its_tokens_are_computed() -> None:
    parts = PrefillParts(decode_tokens=LARGER)
    prompt = parts.pushing_prompt(tokens=19)
    a, b, c, d, e = prompt.own.pages
    parts.compute(prompt, 0, 6)
    await parts.writer.complete()
    assert parts.writer.spans == [], "decode's page 0 goes on to token 8"
    parts.compute(prompt, 6, 13)
    await parts.writer.complete()
    assert parts.writer.spans == [Span(0, a, 40, 0, LAYERS, (b,))]
    parts.compute(prompt, 13)
    await parts.writer.complete()
    assert parts.writer.spans[1:] == [Span(1, c, 41, 0, LAYERS, (d,)), Span(2, e, 42, 0, LAYERS)]


@virtual
async def test_smaller_pages_lie_in_one_of_the_workers_own() -> None:
    parts = PrefillParts(decode_tokens=SMALLER)
    prompt = parts.pushing_prompt(tokens=7)
    first, second = prompt.own.pages
    parts.compute(prompt, 0, 3)
    parts.compute(prompt, 3)
    await parts.writer.complete()
    expected = [(0, first, 40), (1, first, 41), (2, second, 42), (3, second, 43)]
    assert [(span.index, span.source, span.target) for span in parts.writer.spans] == expected
    assert not any(span.behind for span in parts.writer.spans)


@pytest.mark.parametrize("decode_tokens", [SMALLER, PAGE_TOKENS, LARGER, 3 * PAGE_TOKENS])
@pytest.mark.parametrize("seed", range(20))
@virtual
async def test_every_page_of_a_landing_is_pushed_exactly_once_whatever_the_chunks_and_caches_are(
    decode_tokens: int, seed: int
) -> None:
    """And never before the step has run that computes, or copies, the last of its tokens."""
    draw, parts = random.Random(seed), PrefillParts(decode_tokens=decode_tokens)
    tokens = draw.choice((draw.randrange(1, 40), PAGE_TOKENS * draw.randrange(1, 10)))
    if draw.random() < 0.7:  # the prefix cache has some of the prompt, often all of it
        before = parts.pushing_prompt(tokens=max(tokens, draw.randrange(1, 41)))
        parts.pages.publish(before.own, draw.choice((before.total, draw.randrange(before.total + 1))))
        parts.prompts.stop(before, quiet=False)
        parts.writer.spans.clear()
    has = draw.randrange(tokens // decode_tokens + 1)
    prompt = parts.asked(tokens=tokens)
    parts.handoff.on_message(parts.link, parts.landing(prompt, first_page=has))
    copied = {copy for _, copy in prompt.own.copies}
    await parts.writer.complete()
    assert all(copied.isdisjoint((span.source, *span.behind)) for span in parts.writer.spans), "not copied yet"
    while prompt.remaining:
        (chunk,) = chunks([Remaining(1, tokens, prompt.done)], budget=9, chunk=draw.randrange(1, 9))
        parts.compute(prompt, chunk.first, None if chunk.last else chunk.first + chunk.count)
        prompt.own.copies = ()
        await parts.writer.complete()
        full = [span for span in parts.writer.spans if (span.index + 1) * decode_tokens > prompt.done]
        assert not full or not prompt.remaining, "a page is pushed before its tokens are computed"
    pushed = [span.index for span in parts.writer.spans]
    assert sorted(pushed) == list(range(has, -(-tokens // decode_tokens)))


@virtual
async def test_a_resend_names_decodes_pages_and_is_read_from_the_same_own_ones() -> None:
    parts = PrefillParts(decode_tokens=LARGER)
    prompt = await parts.held(tokens=19)
    before = parts.writer.spans.copy()
    parts.handoff.on_message(parts.link, Resend(prompt.ticket, 1, 1, 1, (1, 2)))
    await parts.writer.complete()
    again = parts.writer.spans[len(before) :]
    assert [(s.index, s.source, s.target, s.behind) for s in again] == [
        (s.index, s.source, s.target, s.behind) for s in before[1:]
    ]
    assert parts.decode.taken()[0] == Written(prompt.ticket, 1, 1, 1, (1, 2), (101, 102))
    assert parts.pushing.counts()["bytes_resent"] == 2 * 2 * LAYER_BYTES, "bytes are those of decode's pages"
