"""Decode launches step N + 1 before it has read step N: no text changes and no page is lost."""

from dataclasses import replace

import pytest

from decode_svc.flights import Flights
from decode_svc.speculation.speculation import DraftSource
from engine.step.plan import Plan
from gateway.routing.router import Local
from mesh.messages.jobs import Sampling
from tests.sim.clients import SimClient
from tests.sim.cluster import Cluster
from tests.sim.loop import run_virtual
from tests.sim.model import reference
from tests.sim.seeds.drawing import draw
from tests.sim.seeds.run import RunOutcome, run_story

PROMPTS = [tuple(range(start, start + 9 + start)) for start in (1, 5, 12)]


def answers(*, ahead: bool, stop: tuple[int, ...] = (), pages: int = 64) -> tuple[list[SimClient], list[Plan]]:
    async def main() -> tuple[list[SimClient], list[Plan]]:
        cluster = await Cluster(3, ahead=ahead, pages=pages).start(1, 1)
        samplings = [Sampling(temperature=0.5, seed=n, max_tokens=12 + n, stop_ids=stop) for n in range(3)]
        clients = [cluster.ask(prompt, one) for prompt, one in zip(PROMPTS, samplings, strict=True)]
        assert await cluster.finish() == []
        plans = cluster.decode().plans
        assert plans is not None
        return clients, plans

    return run_virtual(main())


def followed(plans: list[Plan]) -> int:
    return sum(any(piece.follows for piece in plan.pieces) for plan in plans)


def test_texts_are_the_same_and_most_steps_were_launched_ahead() -> None:
    plain, plans = answers(ahead=False)
    ahead, more = answers(ahead=True)
    assert [client.seen for client in ahead] == [client.seen for client in plain]
    assert followed(plans) == 0 and followed(more) > len(more) / 2


def test_a_request_that_stops_leaves_nothing_of_the_row_that_was_launched_behind_it() -> None:
    full = reference(PROMPTS[0], Sampling(temperature=0.5, seed=0, max_tokens=12), 2)
    stop = (full[5],)
    plain, _ = answers(ahead=False, stop=stop)
    ahead, plans = answers(ahead=True, stop=stop)
    assert [client.seen for client in ahead] == [client.seen for client in plain]
    assert len(ahead[0].seen) == full.index(full[5]) + 1
    assert followed(plans) > 0


def test_where_pages_are_short_no_request_is_preempted_for_a_step_ahead() -> None:
    plain, _ = answers(ahead=False, pages=16)
    ahead, _ = answers(ahead=True, pages=16)
    assert [client.seen for client in ahead] == [client.seen for client in plain]


def chaos(seed: int, source: DraftSource = DraftSource.OFF) -> RunOutcome:
    story = draw(seed)
    return run_story(replace(story, world=replace(story.world, source=source, ahead=True)))


@pytest.mark.parametrize("source", [DraftSource.OFF, DraftSource.LOOKUP])
@pytest.mark.parametrize("seed", range(2000, 2003))
def test_chaos_harms_no_request_whose_steps_are_launched_ahead(seed: int, source: DraftSource) -> None:
    assert chaos(seed, source).violations == []


def test_without_flights_pages_of_an_ended_request_are_written_under_another_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The control: released at once, the pages of a step that flies are given to others."""
    monkeypatch.setattr(Flights, "keep", lambda self, request, pages: False)
    assert any(chaos(seed).violations for seed in range(2000, 2012))


def test_after_a_step_that_failed_steps_are_launched_ahead_again_and_computed_once() -> None:
    computed = list[int]()

    def stumble(plan: Plan) -> None:
        computed.append(plan.step)
        if computed.count(20) == 1 and plan.step == 20:
            raise FloatingPointError("this step fails once")

    async def main() -> tuple[list[SimClient], list[Plan]]:
        cluster = await Cluster(5, ahead=True, local=Local.ALWAYS, on_plan=stumble).start(0, 1)
        clients = [cluster.ask(prompt, Sampling(max_tokens=60)) for prompt in PROMPTS]
        assert await cluster.finish() == []
        plans = cluster.decode().plans
        assert plans is not None
        return clients, plans

    clients, plans = run_virtual(main())
    assert all(len(client.seen) == 60 for client in clients)
    assert followed(plans[20:]) > len(plans[20:]) / 2
    twice = {step for step in computed if computed.count(step) > 1}
    assert 20 in twice and twice <= {20, 21}, "the step that failed, and the one that was on its way behind it"
