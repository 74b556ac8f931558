"""Continuous batching, counted in steps of the plan log: no request waits for another one's prompt."""

import pytest

from decode_svc.handoff.room import Room
from decode_svc.request.requests import DecodePhase, DecodeRequest
from engine.step.plan import Plan
from gateway.routing.router import Local
from mesh.messages.jobs import Sampling
from tests.sim.cluster import Cluster
from tests.sim.loop import virtual


def prompt(seed: int, tokens: int) -> tuple[int, ...]:
    return tuple((seed * 7919 + slot * 31) % 50 for slot in range(tokens))


def keys(plan: Plan) -> set[int]:
    return {piece.key for piece in plan.pieces}


@virtual
async def test_a_request_that_joins_31_others_gets_its_second_token_within_two_steps_of_landing() -> None:
    cluster = await Cluster(1, pages=1024, local=Local.NEVER).start(1, 1)
    decode = cluster.decode()
    for number in range(31):
        cluster.ask(prompt(number, 6), Sampling(max_tokens=70))
    assert await cluster.until(lambda: all(len(client.seen) > 2 for client in cluster.clients))
    others = set(decode.requests)
    assert len(others) == 31
    newcomer = cluster.ask(prompt(99, 21), Sampling(max_tokens=6))
    key = cluster.ticket(newcomer).request
    assert await cluster.until(lambda: key in decode.requests and decode.requests[key].phase is DecodePhase.RUNNING)
    assert decode.plans is not None
    landed = len(decode.plans)  # the last of these is running now
    assert await cluster.until(lambda: len(newcomer.seen) == 2)
    steps = next(n for n, plan in enumerate(decode.plans[landed:], 1) if key in keys(plan))
    piece = next(piece for piece in decode.plans[landed + steps - 1].pieces if piece.key == key)
    assert piece.position == 1 and piece.sampled == 1
    assert steps <= 2
    assert all(keys(plan) >= others for plan in decode.plans[landed : landed + steps])
    assert await cluster.finish() == []


@pytest.mark.parametrize("long_prompts", [1, 3])
@virtual
async def test_4k_prompts_prefilled_at_decode_stretch_no_gap_by_more_than_a_chunk(long_prompts: int) -> None:
    chunk = 128
    cluster = await Cluster(1, pages=4096, local=Local.ALWAYS, chunk_tokens=chunk).start(0, 1)
    decode = cluster.decode()
    streams = [cluster.ask(prompt(number, 6), Sampling(max_tokens=40 * long_prompts)) for number in range(8)]
    assert await cluster.until(lambda: all(len(client.seen) > 1 for client in streams))
    eight = set(decode.requests)
    assert decode.plans is not None
    began = len(decode.plans)
    long = [cluster.ask(prompt(50 + n, 4096), Sampling(max_tokens=1)) for n in range(long_prompts)]
    longs = {cluster.ticket(client).request for client in long}
    assert await cluster.until(lambda: all(client.ended for client in long))
    during = [plan for plan in decode.plans[began:] if keys(plan) & longs]
    assert len(during) == 4096 // chunk * long_prompts
    for plan in decode.plans[began : decode.plans.index(during[-1]) + 1]:
        assert keys(plan) >= eight, "a stream waits for a prompt"
        assert sum(len(piece.tokens) for piece in plan.pieces if piece.key in longs) <= chunk
        assert all(len(piece.tokens) == 1 for piece in plan.pieces if piece.key in eight)
    assert await cluster.finish() == []


@virtual
async def test_prefill_shares_a_step_among_prompts_and_never_exceeds_its_budget() -> None:
    cluster = Cluster(1, pages=512, local=Local.NEVER, chunk_tokens=8)  # two chunks a step
    await cluster.start(1, 1)
    for number in range(12):
        cluster.ask(prompt(number, 9 + number))
    assert await cluster.finish() == []
    plans = cluster.prefill().plans
    assert plans is not None and max(plan.rows for plan in plans) == 16
    assert all(len(piece.tokens) <= 8 for plan in plans for piece in plan.pieces)
    assert any(len(plan.pieces) == 2 for plan in plans)


@virtual
async def test_behind_a_full_batch_waiting_prompts_are_not_tried_at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = list[int]()
    trial = Room.take_shared

    def counted(room: Room, request: DecodeRequest) -> tuple[int, ...]:
        tried.append(request.key)
        return trial(room, request)

    cluster = await Cluster(1, pages=1024, local=Local.ALWAYS, max_batch=2).start(0, 1)
    monkeypatch.setattr(Room, "take_shared", counted)
    clients = [cluster.ask(prompt(number, 6), Sampling(max_tokens=20)) for number in range(40)]
    assert await cluster.until(lambda: all(client.ended for client in clients), 20.0)
    plans = cluster.decode().plans
    assert plans is not None and len(plans) > 5 * len(clients)
    assert len(tried) == len(clients)  # each once, when it had its place
    assert await cluster.finish() == []
