"""Prefill's prompts: legal moves, own pages all or none, and an end that waits for writes and for the step."""

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from engine.pages import PagePool, PageState
from mesh.messages import Job, Landing, Sampling, Ticket
from prefill_svc.ledger import Ledger
from prefill_svc.prompts import MOVES, Prompt, PromptPhase

PAGE = 4


@dataclass
class Desk:
    pool: PagePool
    said_quiet: list[int] = field(default_factory=list)
    ended: int = 0

    def __post_init__(self) -> None:
        self.ledger = Ledger(
            self.pool,
            page_tokens=PAGE,
            numerics="a",
            say_quiet=lambda prompt: self.said_quiet.append(prompt.key),
            ended=self._count,
        )

    def _count(self) -> None:
        self.ended += 1

    def prompt(self, key: int, tokens: tuple[int, ...], attempt: int = 1, request: int | None = None) -> Prompt:
        ticket = Ticket(key if request is None else request, attempt, bytes(16))
        prompt = Prompt(key, Job(ticket, tokens, (), Sampling()), cast(Any, None), "decode", 1, 0.0)
        self.ledger.prompts[key] = prompt
        return prompt

    def pushing(self, key: int, tokens: tuple[int, ...]) -> Prompt:
        prompt = self.prompt(key, tokens)
        assert self.ledger.take(prompt)
        prompt.enter(PromptPhase.PUSHING)
        prompt.landing = Landing(prompt.ticket, 0, ())
        return prompt


@pytest.mark.parametrize("phase", list(PromptPhase))
@pytest.mark.parametrize("target", list(PromptPhase))
def test_only_moves_of_the_table_are_made(phase: PromptPhase, target: PromptPhase) -> None:
    prompt = Desk(PagePool(1)).prompt(1, (1,))
    prompt.phase = phase
    if target in MOVES[phase]:
        prompt.enter(target)
        assert prompt.phase is target
    else:
        with pytest.raises(ValueError, match=f"no move from {phase.value} to {target.value}"):
            prompt.enter(target)


def test_a_prompt_takes_all_its_pages_or_none() -> None:
    desk = Desk(PagePool(3))
    first = desk.pushing(1, tuple(range(5)))
    first.done = 5
    desk.ledger.publish(first)
    before = desk.pool.counts()
    assert not desk.ledger.take(desk.prompt(2, tuple(range(12)))), "one page is shared, two are needed, one is free"
    assert desk.pool.counts() == before
    desk.ledger.stop(first, quiet=False)
    assert desk.pool.counts().in_use == 0, "the shared page is nobody's either"


def test_full_pages_are_shared_once_computed() -> None:
    desk = Desk(PagePool(8))
    first = desk.pushing(1, tuple(range(10)))
    first.done = 6
    desk.ledger.publish(first)
    second = desk.pushing(2, tuple(range(10)))
    assert (second.cached, second.done) == (4, 4) and second.pages[0] == first.pages[0]
    assert not set(second.pages[1:]) & set(first.pages)
    other = desk.prompt(3, tuple(range(10)))
    other.job = Job(other.ticket, other.job.prompt, (), Sampling(), salt=b"another tenant")
    assert desk.ledger.take(other) and other.cached == 0


def test_the_last_row_of_a_fully_cached_prompt_is_computed_in_a_copy_that_gives_its_source_back() -> None:
    desk = Desk(PagePool(8))
    first = desk.pushing(1, tuple(range(8)))
    first.done = 8
    desk.ledger.publish(first)
    second = desk.pushing(2, tuple(range(8)))
    ((source, target),) = second.copies
    assert (second.done, second.remaining) == (7, 1)
    assert source == first.pages[1] and second.pages == (first.pages[0], target) and desk.pool.writable(target)
    desk.ledger.copied(second)
    desk.ledger.stop(first, quiet=False)
    assert desk.pool.state(source) is PageState.CACHED, "nobody refers to it any more"


def test_quiet_and_the_pages_wait_for_the_last_write() -> None:
    desk = Desk(PagePool(4))
    prompt = desk.pushing(1, tuple(range(8)))
    prompt.in_flight = 2
    desk.ledger.stop(prompt, quiet=True)
    prompt.in_flight = 1
    desk.ledger.settle(prompt)
    assert desk.said_quiet == [] and desk.pool.counts().in_use == 2 and desk.ledger.prompts
    prompt.in_flight = 0
    desk.ledger.settle(prompt)
    assert desk.said_quiet == [1] and desk.pool.counts().free == 4 and not desk.ledger.prompts and desk.ended == 1


def test_quiet_does_not_wait_for_the_step_but_the_pages_do() -> None:
    desk = Desk(PagePool(4))
    prompt = desk.pushing(1, tuple(range(8)))
    desk.ledger.stepping = {1}
    desk.ledger.stop(prompt, quiet=True)
    assert desk.said_quiet == [1] and desk.pool.counts().in_use == 2
    desk.ledger.stepping = set()
    desk.ledger.settle(prompt)
    assert desk.said_quiet == [1] and desk.pool.counts().free == 4


def test_stopping_twice_is_stopping_once_and_remembers_that_quiet_is_due() -> None:
    desk = Desk(PagePool(4))
    prompt = desk.pushing(1, tuple(range(8)))
    prompt.in_flight = 1
    desk.ledger.stop(prompt, quiet=False)
    desk.ledger.stop(prompt, quiet=True)
    prompt.in_flight = 0
    desk.ledger.settle(prompt)
    assert desk.said_quiet == [1] and desk.ended == 1


def test_forgetting_an_attempt_forgets_lower_ones_and_no_higher_one() -> None:
    desk = Desk(PagePool(8))
    for key, attempt in ((1, 1), (2, 2), (3, 3)):
        desk.prompt(key, (1, 2), attempt, request=7)
    desk.prompt(4, (1, 2), 1, request=8)
    desk.ledger.forget(7, 2)
    assert sorted(desk.ledger.prompts) == [3, 4]
    assert desk.said_quiet == [], "no landing was taken"
