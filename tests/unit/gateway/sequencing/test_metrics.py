"""What the gateway counts about requests: paths, statuses, latencies, and the steps of workers."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from gateway.observability.metrics import GatewayMetrics
from gateway.sequencing.requests import GatewayRequest
from gateway.sequencing.streams import RequestStream
from mesh.errors import Cancelled, DeadlineExceeded
from mesh.messages.jobs import End, Reason, Token
from mesh.messages.reports import Distribution, Lost, Measures, Prefilled, TokenOf, Tokens
from mesh.telemetry.buckets import FIRST_TOKEN, ITERATION_TOKENS, LATENCY, PER_TOKEN
from tests.sim.loop import virtual
from tests.unit.gateway.fake_mesh import SequencerMesh, mesh


def nonzero(counts: Mapping[Any, int]) -> dict[Any, int]:
    return {key: count for key, count in counts.items() if count}


def serve(m: SequencerMesh, request: GatewayRequest, tokens: int, end: End = End.LENGTH) -> None:
    """Prefill sends the first token, decode all, and the last one ends the request."""
    prefill, decode = m.serving(request)
    ticket = request.ticket
    assert ticket is not None
    m.sequencer.on_prefilled(Prefilled(ticket, 4, 0.25, 0.5))
    m.token(prefill, ticket, 0)
    for position in range(tokens):
        m.token(decode, ticket, position, end if position == tokens - 1 else End.NONE)


@virtual
async def test_a_request_is_counted_by_its_path_and_how_it_ended() -> None:
    counted = GatewayMetrics()
    m = mesh(counted)
    serve(m, m.accept(), 3)
    m.sequencer.end(m.accept(), Cancelled("gone"))
    m.sequencer.end(m.accept(), DeadlineExceeded("late"))
    resumed = m.accept()
    assert resumed.ticket is not None
    m.sequencer.on_lost(m.workers[m.serving(resumed)[1]], Lost(resumed.ticket, Reason.PREEMPTED))
    serve(m, resumed, 2, End.STOP)
    for name in ("p1", "p2", "d1", "d2"):
        m.end_session(name)
    m.sequencer.end(m.accept(), Cancelled("gone"))
    assert nonzero(counted.requests) == {
        ("remote", "ok"): 1,
        ("remote", "cancelled"): 1,
        ("remote", "error"): 1,
        ("resumed", "ok"): 1,
        ("none", "cancelled"): 1,
    }
    assert counted.attempts == 5 and counted.resumes.total() == counted.resumes["preempted"] == 1
    assert counted.finished == {"length": 1, "stop": 1, "abort": 2, "error": 1}
    assert counted.decisions["remote"] == 5 and counted.decisions["wait"] == 1


@virtual
async def test_an_answer_that_its_front_door_cut_at_a_stop_string_ended_well() -> None:
    counted = GatewayMetrics()
    m = mesh(counted)
    request = m.accept()
    prefill, _ = m.serving(request)
    m.token(prefill, request.ticket, 0)
    RequestStream(m.sequencer, request).cancel(complete=True)
    assert nonzero(counted.requests) == {("remote", "ok"): 1} and counted.finished == {"stop": 1}
    other = m.accept()
    RequestStream(m.sequencer, other).cancel()
    assert counted.requests["remote", "cancelled"] == 1, "without a whole answer the client has cancelled"


@virtual
async def test_tokens_of_one_message_are_one_gap_and_latencies_add_up() -> None:
    counted = GatewayMetrics()
    m = mesh(counted)
    request = m.accept(max_tokens=6)
    prefill, decode = m.serving(request)
    ticket = request.ticket
    assert ticket is not None
    await asyncio.sleep(1.0)
    m.sequencer.on_prefilled(Prefilled(ticket, 4, 0.25, 0.5))
    m.token(prefill, ticket, 0)
    await asyncio.sleep(0.2)
    items = tuple(TokenOf(ticket, Token(position, 7)) for position in range(5))
    m.sequencer.on_tokens(m.workers[decode], Tokens(items))
    await asyncio.sleep(0.4)
    m.token(decode, ticket, 5, End.LENGTH)

    def only(family_name: str, bounds: tuple[float, ...]) -> tuple[int, float]:
        (view,) = getattr(counted, family_name).views(bounds).values()
        return sum(view.counts), view.sum

    assert only("gaps", PER_TOKEN) == (2, pytest.approx(0.6))
    assert only("first_tokens", FIRST_TOKEN) == (1, pytest.approx(1.0))
    assert only("queues", LATENCY) == (1, pytest.approx(0.5)) and only("prefills", LATENCY) == (1, 0.5)
    assert only("decodes", LATENCY) == (1, pytest.approx(0.6))
    assert only("durations", LATENCY) == (1, pytest.approx(1.6)), "queue, prefill and decode are the whole"
    assert only("per_token", PER_TOKEN) == (1, pytest.approx(0.6 / 5))
    assert only("handoffs", LATENCY) == (1, pytest.approx(0.2))


@virtual
async def test_the_longest_choice_of_a_request_counts_once_when_all_have_ended() -> None:
    counted = GatewayMetrics()
    m = mesh(counted)
    first, second = m.accept(choices=2), m.accept(choices=2)
    serve(m, first, 2)
    assert not sum(counted.longest_choices.of().counts)
    serve(m, second, 4)
    assert (counted.longest_choices.of().sum, sum(counted.longest_choices.of().counts)) == (4, 1)
    assert (counted.choice_counts.of().sum, sum(counted.choice_counts.of().counts)) == (2, 1)
    assert counted.answer_sizes.of().sum == 6


@virtual
async def test_steps_count_from_the_first_measures_on_and_a_restarted_worker_takes_nothing_away() -> None:
    counted = GatewayMetrics()
    m = mesh(counted)
    worker = m.workers["d1"]

    def push(steps: int) -> None:
        counts = (0, steps, *(0,) * (len(ITERATION_TOKENS) - 1))
        worker.measure(Measures((), (Distribution("step_tokens", counts, 8.0 * steps),)), 0.0)
        counted.measured(worker)

    for steps in (100, 103, 103, 110):
        push(steps)
    assert sum(counted.step_tokens.of().counts) == 10 and counted.step_tokens.of().sum == 80
    counted.gone(worker)
    worker.hello = replace(worker.hello, incarnation=99)
    for steps in (0, 5):
        push(steps)
    assert sum(counted.step_tokens.of().counts) == 15


@virtual
async def test_drafts_are_counted_by_what_the_front_door_takes() -> None:
    counted = GatewayMetrics()
    m = mesh(counted)
    request = m.accept(max_tokens=5)
    assert request.ticket is not None
    drafts = [Token(1, 1, drafted=4), Token(2, 2, accepted=True), Token(3, 3, accepted=True)]
    tokens = [Token(0, 9), *drafts, Token(4, 4, drafted=1, end=End.LENGTH)]
    m.sequencer.on_tokens(m.workers[m.serving(request)[1]], Tokens(tuple(TokenOf(request.ticket, t) for t in tokens)))

    async for _ in RequestStream(m.sequencer, request).events():
        pass
    assert (counted.generated, counted.draft_steps, counted.drafts, counted.accepted_drafts) == (5, 2, 5, 2)
    assert counted.accepted_at == {0: 1, 1: 1}, "two drafts of one step, one behind the other"
