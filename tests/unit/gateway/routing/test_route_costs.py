"""The router finds the cheapest of all routes without comparing them, and finds who has a prompt's blocks at once."""

from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.routing.cheapest import PREFERRED_SECONDS
from gateway.routing.costs import Need, parts_of
from gateway.routing.prefix_index import PrefixIndex
from gateway.routing.registry import Workers
from gateway.routing.router import Local, RouteDecision, route
from gateway.routing.worker_table import WorkerTable
from gateway.tracing.attributes import route_attributes
from gateway.workers.attached import AttachedWorker
from mesh.messages.hashing import block_hashes
from mesh.messages.hello_pairs import PageReach
from mesh.messages.jobs import Tier
from mesh.messages.page_shape import opaque_pages
from mesh.messages.reports import Hello, Load, PrefixChange
from mesh.telemetry import semconv
from tests.unit.gateway.exhaustive import AllPairs

PAGE = 4
PROMPT = tuple(range(40))


ROOMY = Load(free_pages=99, total_pages=99)


def worker(tier: Tier, incarnation: int, load: Load = ROOMY, **more: Any) -> AttachedWorker:
    hello = Hello(tier, incarnation, f"w{incarnation}", "a", "print", "m", "0", PAGE, 4096, load, PrefixChange(0))
    return AttachedWorker(replace(hello, **more), cast(Any, SimpleNamespace(send=lambda message: None)), load)


def some_load(random: Random, tier: Tier) -> Load:
    decode = tier is Tier.DECODE
    return Load(
        waiting=random.choice((0, 0, 1)),
        running=random.randrange(20),
        queued_tokens=random.choice((0, 0, random.randrange(3000))),
        free_pages=random.choice((3, 50)),
        total_pages=50,
        tokens_per_second=random.choice((0.0, 500.0, 2000.0)),
        opened=random.randrange(3) if decode else 0,
        free_places=random.randrange(3) if decode else 0,
        place_seconds=random.choice((0.0, 0.05)) if decode else 0.0,
        page_seconds=0.0 if decode else random.choice((0.0, 0.001, 0.02, 0.5)),
        local_tokens_per_second=random.choice((0.0, 900.0)) if decode else 0.0,
    )


def reaches(random: Random) -> PageReach | None:
    transports = random.choice((("shm",), ("shm", "tcp"), ("tcp",), ("shm", "nccl"), ("cuda_ipc", "nccl")))
    return random.choice((None, PageReach(random.choice("xy"), 1, opaque_pages((1, 64), content="m"), transports)))


def world(random: Random) -> list[AttachedWorker]:
    found = list[AttachedWorker]()
    for incarnation in range(1, random.randrange(2, 12)):
        tier = random.choice(list(Tier))
        one = worker(tier, incarnation, some_load(random, tier))
        one.hello = replace(
            one.hello,
            numerics=random.choice("aab"),
            pages=reaches(random),
            adjusts_logits=random.random() < 0.8,
            all_cores=random.random() < 0.5,
            page_tokens=random.choice((PAGE, PAGE, 2 * PAGE)),
        )
        found.append(one)
    return found


def test_a_page_on_its_way_costs_what_prefill_measured_for_pages_of_its_own_size() -> None:
    prefill = worker(Tier.PREFILL, 1, replace(ROOMY, page_seconds=0.5), page_tokens=8)
    small, large = (worker(Tier.DECODE, incarnation, page_tokens=tokens) for incarnation, tokens in ((2, 4), (3, 16)))
    for decode in (small, large):
        assert parts_of(decode, prefill, lacking=40, computed=40).transfer == 40 / 8 * 0.5


def test_the_cheapest_of_two_prefill_workers_with_pages_of_other_sizes_is_found() -> None:
    """Ten pages of the one take 1 s, five of the other 0.75 s; counted in decode's pages the other takes longer."""
    workers = Workers()
    workers.add(worker(Tier.DECODE, 1, page_tokens=4))
    for incarnation, size, seconds in ((2, 4, 0.1), (3, 8, 0.15)):
        load = replace(ROOMY, page_seconds=seconds)
        workers.add(worker(Tier.PREFILL, incarnation, load, page_tokens=size))
    chosen = route(Need(40), workers.table("m"))
    assert chosen is not None and chosen.prefill is not None and chosen.prefill.incarnation == 3


@pytest.mark.parametrize("seed", range(400))
def test_the_chosen_route_is_the_cheapest_of_all(seed: int) -> None:
    random = Random(seed)
    workers, all_workers = world(random), Workers()
    cached = dict[int, int]()
    for one in workers:
        all_workers.add(one)
        blocks = random.choice((0, 0, 3, 3, random.randrange(11)))
        size = one.hello.page_tokens
        hashes = block_hashes(PROMPT, page_tokens=size, numerics=one.hello.numerics)
        blocks = min(blocks, len(hashes))
        one.change(PrefixChange(1, tuple(hashes[:blocks]), snapshot=True))
        cached[one.incarnation] = blocks * size
        one.report(some_load(random, one.tier))
        if random.random() < 0.1:
            one.hangs(True)
    ids = [one.incarnation for one in workers]

    def one_of(chance: float) -> int | None:
        return random.choice(ids) if random.random() < chance else None

    numerics = random.choice(("", "", workers[0].numerics))
    refused = frozenset(i for i in ids if random.random() < 0.1)
    failed = {(random.choice(ids), random.choice(ids)): random.randrange(1, 3) for _ in range(random.choice((0, 0, 3)))}
    adjusts, local = random.random() < 0.2, random.choice((Local.AUTO, *Local))
    preferred = frozenset(i for i in ids if random.random() < 0.2)
    more: dict[str, Any] = {"keep": one_of(0.2), "last": one_of(0.2), "first": one_of(0.2), "local": local}
    more |= {"refused": refused, "failed": failed, "preferred": preferred}
    tokens = len(PROMPT) + random.choice((0, 5))
    table = all_workers.table("m")
    need = Need(tokens, numerics, adjusts, table.leading(PROMPT, b"", {}))
    chosen = route(need, table, **more)
    every = AllPairs(tokens, workers, cached, numerics, adjusts, **more)
    best = every.best_seconds()
    assert (chosen is None) == (best is None)
    if chosen is not None and best is not None:
        pair = chosen.decode.incarnation, chosen.prefill.incarnation if chosen.prefill else None
        worth = PREFERRED_SECONDS * sum(each in preferred for each in pair)
        assert chosen.cost.seconds - worth == pytest.approx(best)
        assert chosen.candidates == every.count()
        assert chosen.cached == tuple(cached.get(each or 0, 0) for each in pair)


def test_a_worker_that_comes_and_one_that_leaves_change_the_choice() -> None:
    workers, one, two = Workers(), worker(Tier.DECODE, 1), worker(Tier.DECODE, 2)
    workers.add(one)
    chosen = route(Need(9), workers.table("m"))
    assert chosen is not None and chosen.decode is one
    workers.add(two)
    one.count(50)
    chosen = route(Need(9), workers.table("m"))
    assert chosen is not None and chosen.decode is two
    workers.remove(two)
    chosen = route(Need(9), workers.table("m"))
    assert chosen is not None and chosen.decode is one
    workers.remove(one)
    assert route(Need(9), workers.table("m")) is None


def test_a_worker_that_hangs_gets_nothing_until_it_goes_on() -> None:
    workers, one = Workers(), worker(Tier.DECODE, 1)
    workers.add(one)
    one.hangs(True)
    assert route(Need(9), workers.table("m")) is None
    one.hangs(False)
    assert route(Need(9), workers.table("m")) is not None
    one.drains()
    assert route(Need(9), workers.table("m")) is None


def test_decode_takes_a_prompt_while_prefill_has_a_queue_and_never_from_an_idle_one() -> None:
    table = WorkerTable()
    decode = worker(Tier.DECODE, 1, Load(free_pages=99, total_pages=99, local_tokens_per_second=500.0))
    prefill = worker(Tier.PREFILL, 2, Load(tokens_per_second=500.0))
    table.add(decode)
    table.add(prefill)
    decisions = list[RouteDecision]()
    for queued in (0, 1000):
        prefill.report(Load(tokens_per_second=500.0, queued_tokens=queued))
        chosen = route(Need(100), table)
        assert chosen is not None
        decisions.append(chosen.decision)
    assert decisions == [RouteDecision.REMOTE, RouteDecision.LOCAL_FASTER]
    assert chosen.cost.queue == 0 and chosen.cost.prefill == 0.2 and chosen.cost.interference > 0
    never = route(Need(100), table, local=Local.NEVER)
    assert never is not None and never.prefill is prefill
    decode.report(replace(decode.load, local_tokens_per_second=0.0))
    fixed = route(Need(100), table)
    assert fixed is not None and fixed.prefill is prefill, "a decode worker that names no speed takes none"


def test_the_more_requests_decode_has_the_longer_the_queue_at_prefill_must_be() -> None:
    table = WorkerTable()
    load = Load(free_pages=99, total_pages=99, local_tokens_per_second=500.0)
    decode, prefill = worker(Tier.DECODE, 1, load), worker(Tier.PREFILL, 2)
    table.add(decode)
    table.add(prefill)
    needed = []
    for running in (0, 30):
        decode.report(replace(load, running=running))
        for queued in range(0, 1000, 10):
            prefill.report(Load(tokens_per_second=500.0, queued_tokens=queued))
            if (chosen := route(Need(100), table)) is not None and chosen.prefill is None:
                needed.append(queued)
                break
    assert len(needed) == 2 and needed[0] < needed[1]


def test_a_slow_way_is_worth_a_longer_queue() -> None:
    table = WorkerTable()
    for one in (
        worker(Tier.DECODE, 1),
        worker(Tier.PREFILL, 2, Load(page_seconds=0.1)),
        worker(Tier.PREFILL, 3, Load(queued_tokens=100, page_seconds=0.0001)),
    ):
        table.add(one)
    chosen = route(Need(40), table)
    assert chosen is not None and chosen.prefill is not None and chosen.prefill.incarnation == 3
    assert chosen.cost.transfer == pytest.approx(10 * 0.0001) and chosen.cost.queue == pytest.approx(100 / 2000)


def test_a_trace_shows_the_parts_that_a_cost_is_made_of() -> None:
    table = WorkerTable()
    table.add(worker(Tier.DECODE, 1, replace(ROOMY, running=3)))
    table.add(worker(Tier.PREFILL, 2, Load(queued_tokens=500)))
    chosen = route(Need(40), table)
    assert chosen is not None
    shown = route_attributes(chosen, resumed=False)
    parts = {key: value for key, value in shown.items() if key.startswith("baton.route.cost.")}
    assert shown[semconv.REASON] == "remote" and len(parts) == 5
    assert parts[semconv.COST_QUEUE] == 0.25 and parts[semconv.COST_INTERFERENCE] == pytest.approx(0.006)
    assert sum(cast(Any, list(parts.values()))) == pytest.approx(shown[semconv.COST])


# ---- who has which blocks


def test_a_worker_counts_for_the_blocks_before_the_first_that_it_lacks() -> None:
    index = PrefixIndex()
    blocks = [bytes([i]) for i in range(6)]
    index.add(0b001, blocks)
    index.add(0b010, blocks[:2])
    index.add(0b100, blocks[:2])
    index.add(0b1000, blocks[1:])
    found = {each.blocks: each.workers for each in index.leading(blocks)}
    assert found == {6: 0b001, 2: 0b110}
    index.remove(0b001, blocks[:1])
    assert {each.blocks: each.workers for each in index.leading(blocks)} == {2: 0b110}
    assert index.leading([b"?", *blocks]) == [] and index.leading([]) == []


@pytest.mark.parametrize("seed", range(50))
def test_the_index_agrees_with_a_look_at_every_worker(seed: int) -> None:
    """Caches evict the last block of a prompt first."""
    random, index = Random(seed), PrefixIndex()
    blocks, holds = [bytes([i]) for i in range(12)], [0] * 70
    for _ in range(300):
        slot, count = random.randrange(len(holds)), random.randrange(len(blocks) + 1)
        index.add(1 << slot, blocks[holds[slot] : count])
        index.remove(1 << slot, blocks[count : holds[slot]])
        holds[slot] = count
    assert _led(index, blocks, len(holds)) == holds and len(set(holds)) > 5
    for slot, count in enumerate(holds):
        index.remove(1 << slot, blocks[:count])
    assert len(index) == 0


@pytest.mark.parametrize("seed", range(50))
def test_a_worker_that_lacks_a_block_in_the_middle_counts_with_no_less_than_it_has(seed: int) -> None:
    random, index, workers = Random(seed), PrefixIndex(), 70
    blocks = [bytes([i]) for i in range(12)]
    holds = [{block for block in blocks if random.random() < 0.9} for _ in range(workers)]
    for slot, held in enumerate(holds):
        index.add(1 << slot, held)
    for held, led in zip(holds, _led(index, blocks, workers), strict=True):
        first = next((i for i, block in enumerate(blocks) if block not in held), len(blocks))
        assert led >= first and (led == len(blocks) or blocks[led] not in held)


def _led(index: PrefixIndex, blocks: list[bytes], workers: int) -> list[int]:
    """The leading blocks of each worker, as the index tells them."""
    found = [0] * workers
    for each in index.leading(blocks):
        for slot in range(workers):
            found[slot] += each.blocks * (each.workers >> slot & 1)
    return found


def test_a_prompt_is_hashed_only_as_far_as_some_worker_has_it() -> None:
    table, one = WorkerTable(), worker(Tier.DECODE, 1)
    table.add(one)
    hashes: dict[tuple[str, int], list[bytes]] = {}
    assert table.leading(PROMPT, b"", hashes) == [] and hashes == {}
    whole = block_hashes(PROMPT, page_tokens=PAGE, numerics="a")
    one.change(PrefixChange(1, tuple(whole[:3]), snapshot=True))
    (found,) = table.leading(PROMPT, b"", hashes)
    assert found.tokens == 3 * PAGE and hashes["a", PAGE] == whole[:4]
    one.change(PrefixChange(2, tuple(whole[3:5])))
    (found,) = table.leading(PROMPT, b"", hashes)
    assert found.tokens == 5 * PAGE and hashes["a", PAGE] == whole[:6]
    table.remove(one)
    assert table.leading(PROMPT, b"", hashes) == []
