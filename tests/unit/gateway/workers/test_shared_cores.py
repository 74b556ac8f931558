"""A decode worker may use the cores of a prefill worker: then a prompt takes them from the batch in either place."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.routing.costs import Need, parts_of
from gateway.routing.router import RouteDecision, route
from gateway.routing.worker_table import WorkerTable
from gateway.workers.attached import AttachedWorker
from gateway.workers.worker_figures import HELD_REQUEST, SECOND_BATCH_SECONDS, prompt_wait
from mesh.messages.hello_pairs import PageReach
from mesh.messages.jobs import Tier
from mesh.messages.page_shape import opaque_pages
from mesh.messages.reports import Hello, Load, PrefixChange

ROOM = {"free_pages": 99, "total_pages": 99, "tokens_per_second": 2000.0}
BATCH = Load(running=14, free_places=50, local_tokens_per_second=1000.0, **ROOM)  # type: ignore[arg-type]
IDLE = Load(**ROOM)  # type: ignore[arg-type]


def worker(tier: Tier, incarnation: int, load: Load, *, host: str = "here", all_cores: bool = False) -> AttachedWorker:
    hello = Hello(tier, incarnation, f"w{incarnation}", "a", "print", "m", "0", 4, 4096, load, PrefixChange(0))
    reach = PageReach(host, 1, opaque_pages((1, 64), content="m"), ("tcp",))
    hello = replace(hello, pages=reach, all_cores=all_cores)
    return AttachedWorker(hello, cast(Any, SimpleNamespace(send=lambda message: None)), load)


def table_of(*workers: AttachedWorker) -> WorkerTable:
    table = WorkerTable()
    for each in workers:
        table.add(each)
    return table


@pytest.mark.parametrize(
    ("all_cores", "host", "decision"),
    [
        (True, "here", RouteDecision.LOCAL_FASTER),
        (False, "here", RouteDecision.REMOTE),
        (True, "there", RouteDecision.REMOTE),
    ],
)
def test_decode_computes_a_prompt_where_prefill_would_take_the_same_cores(
    all_cores: bool, host: str, decision: RouteDecision
) -> None:
    """Prefill is as fast and idle, so a prompt goes there unless the batch loses as much by it."""
    decode = worker(Tier.DECODE, 1, BATCH, all_cores=all_cores)
    chosen = route(
        Need(40), table_of(decode, worker(Tier.PREFILL, 2, replace(IDLE, tokens_per_second=1000.0), host=host))
    )
    assert chosen is not None and chosen.decision is decision


def test_a_prefill_worker_of_another_host_takes_the_prompts_of_a_full_one() -> None:
    decode = worker(Tier.DECODE, 1, BATCH, all_cores=True)
    near, far = worker(Tier.PREFILL, 2, IDLE), worker(Tier.PREFILL, 3, IDLE, host="there")
    chosen = route(Need(40), table_of(decode, near, far))
    assert chosen is not None and chosen.prefill is far


def test_what_decode_reports_changes_the_costs_of_prefill_on_its_cores() -> None:
    decode, prefill = worker(Tier.DECODE, 1, BATCH, all_cores=True), worker(Tier.PREFILL, 2, IDLE)
    table = table_of(decode, prefill)
    before = table.prefills[0].queue[0], table.prefills[0].token[0]
    assert before == (0.0, pytest.approx(1.5 * (1 + 0.25 + HELD_REQUEST * 14) / 2000))
    decode.report(replace(BATCH, running=0, queued_tokens=500))
    assert (table.prefills[0].queue[0], table.prefills[0].token[0]) == (0.5, pytest.approx(1.5 * 1.25 / 2000))
    parts = parts_of(decode, prefill, lacking=40, computed=40)
    assert (parts.queue, parts.prefill) == (0.5, 1.5 * 40 / 2000)
    assert parts.interference == pytest.approx(1.5 * 0.25 * 40 / 2000)


def test_of_prompts_that_come_together_only_the_first_leaves_an_idle_decode_worker() -> None:
    idle = replace(IDLE, local_tokens_per_second=1000.0)
    decode, prefill = worker(Tier.DECODE, 1, idle, all_cores=True), worker(Tier.PREFILL, 2, IDLE)
    table = table_of(decode, prefill)
    first = route(Need(256), table)
    assert first is not None and first.prefill is prefill
    decode.count(0)  # it waits for the pages of the first
    second = route(Need(256), table)
    assert second is not None and second.decision is RouteDecision.LOCAL_FASTER
    decode.report(replace(idle, opened=1))
    third = route(Need(256), table)
    assert third is not None and third.decision is RouteDecision.LOCAL_FASTER


def test_a_decode_worker_that_has_left_takes_no_cores() -> None:
    decode, prefill = (
        worker(Tier.DECODE, 1, replace(BATCH, queued_tokens=500), all_cores=True),
        worker(Tier.PREFILL, 2, IDLE),
    )
    table = table_of(decode, prefill)
    assert table.prefills and prompt_wait(prefill) == 0.5
    table.remove(decode)
    assert table.prefills and prompt_wait(prefill) == 0.0


def pair(first: Load, second: Load, *, all_cores: bool = True, **more: Any) -> tuple[AttachedWorker, AttachedWorker]:
    return (
        worker(Tier.DECODE, 1, first, all_cores=all_cores),
        worker(Tier.DECODE, 2, second, all_cores=all_cores, **more),
    )


def chosen_of(*workers: AttachedWorker, tokens: int = 40) -> AttachedWorker:
    chosen = route(Need(tokens), table_of(*workers))
    assert chosen is not None
    return chosen.decode


def test_one_batch_is_filled_before_the_same_cores_get_a_second() -> None:
    first, second = pair(BATCH, IDLE)
    assert chosen_of(first, second) is first and chosen_of(second, first) is first
    assert chosen_of(*pair(BATCH, IDLE, all_cores=False)).incarnation == 2, "negative control"
    first, second = pair(BATCH, IDLE, host="there")
    assert chosen_of(first, second) is second, "the cores of another host are others"


def test_an_idle_worker_on_the_cores_of_a_batch_computes_no_prompt_faster() -> None:
    """It has measured its speed alone; beside the batch it has that of the other one, and slows all of it down."""
    idle = replace(IDLE, local_tokens_per_second=1000.0)
    first, second = pair(replace(BATCH, local_tokens_per_second=100.0), idle)
    prefill = worker(Tier.PREFILL, 3, IDLE)
    assert chosen_of(first, second, tokens=400) is first
    assert chosen_of(first, second, prefill, tokens=400) is first
    one, other = (parts_of(each, None, lacking=400, computed=400, beside=True) for each in (first, second))
    assert one.prefill == other.prefill == 4.0
    assert other.interference - one.interference == pytest.approx(SECOND_BATCH_SECONDS - 14 * 0.002)
    assert chosen_of(*pair(BATCH, idle, host="there"), tokens=400).incarnation == 2, "negative control"


def test_a_worker_whose_step_takes_long_is_the_last_to_get_a_request() -> None:
    """It looks idle: what it has waits for its step, which may hang."""
    idle, other = (
        worker(Tier.DECODE, 1, IDLE),
        worker(Tier.DECODE, 2, replace(IDLE, running=9, opened=9, free_places=20)),
    )
    table = table_of(idle, other)

    def taken() -> AttachedWorker:
        chosen = route(Need(40), table)
        assert chosen is not None
        return chosen.decode

    assert taken() is idle
    idle.computes(4.0, 20.0)
    assert taken() is other and parts_of(idle, None, lacking=40, computed=40).room == 4.0
    idle.computes(0.0, 0.0)
    assert taken() is idle


def test_of_two_batches_on_the_same_cores_the_larger_one_grows() -> None:
    first, second = pair(replace(BATCH, running=3), BATCH)
    assert chosen_of(first, second) is second


def test_a_full_batch_a_worker_that_leaves_and_one_without_pages_send_requests_to_the_second_worker() -> None:
    full = replace(BATCH, free_places=0, place_seconds=2.0)
    first, second = pair(full, IDLE)
    assert chosen_of(first, second) is second
    first, second = pair(replace(BATCH, free_pages=1), IDLE)
    assert chosen_of(first, second) is second
    first, second = pair(BATCH, IDLE)
    table = table_of(first, second)
    assert table.decodes[0].standing[1] == SECOND_BATCH_SECONDS
    first.drains()
    assert table.decodes[0].standing[1] == 0.0, "its figures follow from those of the other one"
    table.remove(first)
    chosen = route(Need(40), table)
    assert chosen is not None and chosen.decode is second


def test_the_prompts_of_one_batch_delay_those_of_a_second_on_its_cores() -> None:
    first, second = pair(replace(BATCH, queued_tokens=500), replace(IDLE, queued_tokens=100))
    assert table_of(first, second).decodes[0].queue.tolist() == [0.6, 0.6], "at the speed beside the batch"
