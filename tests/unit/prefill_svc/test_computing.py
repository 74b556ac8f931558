"""Decode is told now and then that a prompt is still computing: often enough for its deadline, not for every group."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from engine.plan import Plan
from kvtransfer.transfer import PageShape
from mesh.messages import Computing, Job, Landing, Sampling, Ticket
from mesh.telemetry import Silent
from prefill_svc.prompts import Prompt, PromptPhase
from prefill_svc.pushing import Pushing

TELL_SECONDS = 0.25


class Peers:
    """Every address leads to one link that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def get(self, address: str) -> "Peers":
        return self

    def send(self, message: Any) -> None:
        self.sent.append(message)


@pytest.fixture
def peers() -> Peers:
    return Peers()


@pytest.fixture
async def pushing(peers: Peers) -> Pushing:
    loop = asyncio.get_running_loop()
    ticket = Ticket(1, 1, bytes(16))
    job = Job(ticket=ticket, prompt=(1, 2, 3), emitted=(), sampling=Sampling(), deadline_seconds=None, traceparent="")
    prompt = Prompt(1, job, SimpleNamespace(), "decode", 7, loop.time(), stage=PromptPhase.PUSHING)  # type: ignore[arg-type]
    prompt.landing, prompt.landed_seconds = Landing(ticket, 0, (4,)), loop.time()
    ledger: Any = SimpleNamespace(prompts={1: prompt})
    links: Any = peers
    return Pushing(
        ledger,
        links,
        shape=PageShape(((4, 64),), "test"),
        page_tokens=16,
        tell_seconds=TELL_SECONDS,
        telemetry=Silent(),
        cannot_push=lambda prompt: None,
    )


async def test_a_landing_that_has_just_begun_needs_no_sign_of_life(pushing: Pushing, peers: Peers) -> None:
    pushing.computed(Plan(1, ()), 0, 2, longest_step_ms=5)
    assert peers.sent == []


async def test_a_prompt_that_computes_for_long_is_told_once_per_interval(pushing: Pushing, peers: Peers) -> None:
    prompt = pushing._ledger.prompts[1]
    prompt.landed_seconds -= TELL_SECONDS
    for group in range(4):
        pushing.computed(Plan(1, ()), group, 1, longest_step_ms=5)
    assert peers.sent == [Computing(prompt.ticket, 0, 5)]
    prompt.told_seconds -= TELL_SECONDS
    pushing.computed(Plan(2, ()), 0, 1, longest_step_ms=6)
    assert peers.sent[1:] == [Computing(prompt.ticket, 0, 6)]


async def test_a_prompt_whose_first_token_is_sampled_is_no_longer_computing(pushing: Pushing, peers: Peers) -> None:
    prompt = pushing._ledger.prompts[1]
    prompt.landed_seconds -= TELL_SECONDS
    prompt.enter(PromptPhase.HELD)
    pushing.computed(Plan(1, ()), 0, 1, longest_step_ms=5)
    assert peers.sent == []
