"""Pushing: which spans a step fills, what decode hears of them, and Commit behind the last write."""

import asyncio
import json
from typing import Any, cast

from kvtransfer.transfer import TransferError
from mesh.messages.jobs import Reason, Token
from mesh.messages.kv_messages import Commit, Computing, Resend, Written
from mesh.messages.reports import Lost, Phases
from mesh.sessions.legs import Outbox
from mesh.timing.loop_monitor import LoopMonitor
from prefill_svc.observed import PromptRecord
from prefill_svc.prompts import PromptPhase
from tests.sim.loop import virtual
from tests.unit.prefill_svc.parts import LAYER_BYTES, LAYERS, PrefillParts, pushing

TRACEPARENT = f"00-{1:032x}-{1:016x}-01"


@virtual
async def test_each_layer_group_pushes_the_pages_that_the_chunk_fills() -> None:
    parts, prompt = pushing(tokens=10)
    chunk = parts.plan(prompt, 0, 6)
    parts.pushing.computed(chunk, 0, 1)
    parts.pushing.computed(chunk, 1, 1)
    await parts.writer.complete()
    assert [(s.index, s.first_layer) for s in parts.writer.spans] == [(0, 0), (0, 1)], "page 1 is not full yet"
    parts.pushing.computed(parts.plan(prompt, 6, 10), 0, 2)
    await parts.writer.complete()
    rest = parts.writer.spans[2:]
    assert [(s.index, s.first_layer, s.layers) for s in rest] == [(1, 0, 2), (2, 0, 2)], "with the partial page"
    assert [(s.source, s.target) for s in rest] == [(prompt.own.pages[1], 41), (prompt.own.pages[2], 42)]


@virtual
async def test_pages_that_decode_has_are_not_pushed() -> None:
    parts = PrefillParts()
    prompt = parts.asked(tokens=10)
    parts.handoff.on_message(parts.link, parts.landing(prompt, first_page=1))
    parts.compute(prompt)
    await parts.writer.complete()
    assert [(s.index, s.target) for s in parts.writer.spans] == [(1, 41), (2, 42)]


@virtual
async def test_pages_from_the_prefix_cache_are_pushed_when_the_landing_comes() -> None:
    parts = PrefillParts()
    first = parts.pushing_prompt(tokens=10)
    parts.pages.publish(first.own, 10)
    parts.prompts.stop(first, quiet=False)
    second = parts.pushing_prompt(tokens=10)
    await parts.writer.complete()
    assert [(s.index, s.layers) for s in parts.writer.spans] == [(0, LAYERS), (1, LAYERS)] and second.done == 8


@virtual
async def test_a_completed_write_is_reported_with_its_checksums() -> None:
    parts, prompt = pushing()
    parts.compute(prompt)
    await asyncio.sleep(0)
    assert parts.decode.taken() == [], "nothing is complete"
    await parts.writer.complete()
    assert parts.decode.taken() == [Written(prompt.ticket, 0, LAYERS, 0, (0, 1), (100, 101))]


@virtual
async def test_frames_of_a_two_sided_transport_need_no_report() -> None:
    parts = PrefillParts()
    parts.writer.one_sided = False
    parts.compute(parts.pushing_prompt())
    await parts.writer.complete()
    assert parts.decode.taken() == []


@virtual
async def test_commit_waits_for_the_last_write_and_for_the_first_token() -> None:
    parts, prompt = pushing()
    parts.pushing.computed(parts.plan(prompt), 0, 1)
    parts.pushing.computed(parts.plan(prompt), 1, 1)
    parts.sample(prompt)
    await parts.writer.complete(1)
    assert prompt.phase is PromptPhase.PUSHING and not any(isinstance(m, Commit) for m in parts.decode.taken())
    await parts.writer.complete()
    assert parts.decode.taken()[-1] == Commit(prompt.ticket, 0, Token(0, 9)) and prompt.phase is PromptPhase.HELD

    other = parts.pushing_prompt(2)
    parts.decode.taken()
    parts.compute(other)
    await parts.writer.complete()
    assert not any(isinstance(m, Commit) for m in parts.decode.taken()), "no token is sampled yet"


@virtual
async def test_a_resend_is_written_again_and_committed_with_its_round() -> None:
    parts = PrefillParts()
    prompt = await parts.held()
    parts.handoff.on_message(parts.link, Resend(prompt.ticket, 1, 1, 1, (1,)))
    assert prompt.phase is PromptPhase.PUSHING
    await parts.writer.complete()
    written, commit = parts.decode.taken()
    assert written == Written(prompt.ticket, 1, 1, 1, (1,), (101,)) and commit == Commit(prompt.ticket, 1, Token(0, 9))
    assert parts.writer.rounds[-1] == 1
    assert parts.pushing.counts() == {"committed": 1, "bytes_resent": LAYER_BYTES}, "a prompt is committed once"


@virtual
async def test_a_write_that_fails_loses_the_prompt_once() -> None:
    parts, prompt = pushing()
    parts.pushing.computed(parts.plan(prompt), 0, 1)
    parts.pushing.computed(parts.plan(prompt), 1, 1)
    await parts.writer.complete(1, TransferError("broken"))
    assert parts.gateway.taken() == [Lost(prompt.ticket, Reason.CANNOT_PUSH)] and parts.pool.counts().in_use == 2
    assert parts.decode.closed == 1, "only another session brings another writer"
    await parts.writer.complete(1, TransferError("broken"))
    assert parts.gateway.taken() == [] and parts.decode.taken() == [] and parts.pool.counts().in_use == 0


@virtual
async def test_a_write_without_a_session_loses_the_prompt() -> None:
    parts, prompt = pushing()
    parts.link.writer = None
    parts.compute(prompt)
    await parts.writer.complete()
    assert parts.gateway.taken() == [Lost(prompt.ticket, Reason.CANNOT_PUSH)]


# ---- Computing


@virtual
async def test_decode_hears_of_a_long_prompt_once_per_interval() -> None:
    parts = PrefillParts()
    prompt, waits = parts.pushing_prompt(1, tokens=40), parts.pushing_prompt(2)
    parts.speed.measure(8, 0.03)
    heard: list[tuple[float, Computing]] = []
    began = asyncio.get_running_loop().time()
    for _ in range(11):  # a layer group every 100 ms
        parts.pushing.computed(parts.plan(prompt, 0, 3), 0, 1)
        now = round(asyncio.get_running_loop().time() - began, 3)
        heard += [(now, m) for m in parts.decode.taken() if isinstance(m, Computing)]
        await asyncio.sleep(0.1)
    assert [now for now, message in heard if message == Computing(prompt.ticket, 30)] == [0.3, 0.6, 0.9]
    assert len([m for _, m in heard if m.ticket == waits.ticket]) == 3, "also while others are computed"


@virtual
async def test_a_prompt_whose_first_token_is_sampled_sends_no_computing() -> None:
    parts = PrefillParts()
    prompt, other = parts.pushing_prompt(1), parts.pushing_prompt(2, tokens=40)
    parts.compute(prompt)
    parts.sample(prompt)
    await asyncio.sleep(1)
    parts.pushing.computed(parts.plan(other, 0, 3), 0, 1)
    assert [m.ticket for m in parts.decode.taken() if isinstance(m, Computing)] == [other.ticket]


@virtual
async def test_a_commit_records_the_spans_of_computing_and_pushing() -> None:
    parts, prompt = pushing()
    job = type(prompt.job)(prompt.ticket, prompt.job.prompt, (), prompt.job.sampling, None, TRACEPARENT)
    session = cast(Any, parts.gateway)
    prompt.record = PromptRecord(Outbox(LoopMonitor()).recorder(session, job, 0.0))
    prompt.record.step_begins(0.0)
    parts.compute(prompt)
    await parts.writer.complete()
    prompt.bytes_before_first = 128
    prompt.record.first_token(0.0, 8, 0)
    await asyncio.sleep(0.25)
    parts.sample(prompt)
    parts.prompts.stop(prompt, quiet=False)
    await asyncio.sleep(0)
    (report,) = [message for message in parts.gateway.taken() if isinstance(message, Phases)]
    phases = {phase.name: json.loads(phase.attributes) for phase in report.legs[0].phases}
    assert phases["compute"] == {"baton.tokens": 8, "baton.cached_tokens": 0}
    assert phases["kv.send"] == {
        "baton.kv.bytes": 2 * LAYERS * LAYER_BYTES,
        "baton.kv.pages": 2,
        "baton.kv.transport": "manual",
        "baton.kv.hidden_share": 128 / (2 * LAYERS * LAYER_BYTES),
        "baton.kv.exposed_seconds": 0.25,
        "baton.kv.resends": 0,
    }
