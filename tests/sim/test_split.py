"""The adaptive split: decode takes whole prompts while requests queue at prefill, and cuts them to fit into a gap."""

import asyncio
from dataclasses import dataclass

import pytest

from engine.step.plan import Plan
from gateway.routing.router import Local
from mesh.messages.jobs import Sampling
from tests.sim.cluster import Cluster
from tests.sim.loop import virtual

STEP_SECONDS, ROW_SECONDS = 0.010, 0.002
TARGET_MS = 60.0
CLIENTS, PROMPT, ANSWER = 8, 48, 16


@dataclass(frozen=True)
class SplitRun:
    seconds: float  # until all clients have their answers
    texts: list[list[int]]
    local: int  # prompts that decode computed
    remote: int  # prompts that prefill handed over
    longest_seconds: float  # time of decode's longest step with somebody who decodes


def prompt(number: int) -> tuple[int, ...]:
    return tuple((number * 7919 + slot * 31) % 50 for slot in range(PROMPT))


def seconds_of(plan: Plan) -> float:
    return STEP_SECONDS + ROW_SECONDS * plan.rows


async def _warm(cluster: Cluster) -> None:
    """Decode measures some steps, with and without prompts."""
    for number in range(2):
        cluster.ask(prompt(100 + number), Sampling(max_tokens=8))
        await cluster.until(lambda: all(client.ended for client in cluster.clients))


async def _run(itl_target_ms: float, local: Local, prefills: int, clients: int) -> SplitRun:
    cluster = Cluster(
        5,
        pages=512,
        local=local,
        chunk_tokens=PROMPT,
        itl_target_ms=itl_target_ms,
        cache=False,
        step_seconds=STEP_SECONDS,
        row_seconds=ROW_SECONDS,
    )
    await cluster.start(prefills, 1)
    await _warm(cluster)
    decode = cluster.decode()
    assert decode.plans is not None
    decode.plans.clear()
    before, began = decode.counts()["admitted_local"], asyncio.get_running_loop().time()
    mine = [cluster.ask(prompt(number), Sampling(max_tokens=ANSWER)) for number in range(clients)]
    await cluster.until(lambda: all(client.ended for client in mine))
    seconds = asyncio.get_running_loop().time() - began
    assert await cluster.finish() == []
    shared = [plan for plan in decode.plans if any(piece.sampled == len(piece.tokens) == 1 for piece in plan.pieces)]
    admitted = decode.counts()["admitted_local"] - before
    longest = max(map(seconds_of, shared))
    return SplitRun(seconds, [client.seen for client in mine], admitted, clients - admitted, longest)


@virtual
async def run(itl_target_ms: float, local: Local = Local.AUTO, prefills: int = 1, clients: int = CLIENTS) -> SplitRun:
    found = list[SplitRun]()
    found.append(await _run(itl_target_ms, local, prefills, clients))
    return found[0]


def test_decode_takes_prompts_from_a_queue_and_everybody_is_done_earlier() -> None:
    adaptive, fixed = run(TARGET_MS), run(0)
    assert 0 < adaptive.local < CLIENTS and fixed.local == 0, "negative control: without a target the split is fixed"
    assert adaptive.seconds < 0.9 * fixed.seconds
    assert adaptive.texts == fixed.texts


@pytest.mark.parametrize(("clients", "target_ms", "most_ms"), [(2, 60.0, 60.0), (CLIENTS, 40.0, 100.0)])
def test_a_step_with_chunks_of_prompts_stays_below_the_target_and_longer_ones_below_its_limit_while_others_wait(
    clients: int, target_ms: float, most_ms: float
) -> None:
    cut, whole = run(target_ms, Local.ALWAYS, 0, clients), run(0, Local.ALWAYS, 0, clients)
    assert cut.longest_seconds <= most_ms / 1000 < whole.longest_seconds, "negative control: whole chunks exceed it"
    assert (cut.longest_seconds > target_ms / 1000) is (clients > 2)
    assert cut.texts == whole.texts, "the size of chunks changes no token"
    assert cut.local == whole.local == clients
