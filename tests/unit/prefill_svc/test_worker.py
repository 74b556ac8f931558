"""The prefill worker: which prompts it takes from its gateways, and which rows a step computes."""

import asyncio
from random import Random
from typing import Any, cast

import pytest

from engine.loading.worker_engine import WorkerEngine
from engine.pool.pages import PagePool
from engine.step.batch import pages_needed
from engine.step.plan import OnLayers, Plan, Result, Sampled
from kvtransfer.memory import MemoryPool
from mesh.messages.jobs import Job, Reason, Sampling, Ticket, Tier, Token
from mesh.messages.kv_messages import KvHello, Landing, Ready
from mesh.messages.orders import Cancel, Open, Prefill
from mesh.messages.reports import Hello, Load, Lost, Prefilled, PrefixChange, TokenOf, Tokens
from mesh.network.memory_network import MemoryNetwork
from mesh.sessions.membership import Membership
from mesh.sessions.session import BadMessage
from prefill_svc.worker import PrefillWorker
from tests.sim.loop import virtual
from tests.unit.prefill_svc.parts import DECODE_INCARNATION, PAGE_TOKENS, SHAPE, ManualWriter, SentMessages


def make_worker(pages: int = 16) -> PrefillWorker:
    """A worker that dials no decode worker by itself."""
    hello = Hello(Tier.PREFILL, 5, "", "a", "print", "m", "0", PAGE_TOKENS, 4096, Load(), PrefixChange(0))
    return PrefillWorker(
        Membership(network=MemoryNetwork(Random(1)).host("prefill"), hello=hello, gateways=()),
        WorkerEngine(runner=QuarterSecondRunner(), pages=PagePool(pages)),
        MemoryPool(SHAPE, pages),
        kv_hello=KvHello(5, "a", SHAPE, "host", 0, 0),
        transports={},
        chunk_tokens=8,
        step_tokens=12,
    )


class QuarterSecondRunner:
    """Each step takes 250 ms and samples token 9."""

    layers, ahead = 2, False

    async def run(self, plan: Plan, on_layers: OnLayers | None = None) -> Result:
        await asyncio.sleep(0.25)
        assert on_layers is not None
        on_layers(0, 2)
        return Result(tuple((Sampled(9, -0.5),) if piece.sampled else () for piece in plan.pieces))


def send(
    worker: PrefillWorker, gateway: SentMessages, request: int, tokens: int, *, attempt: int = 1, **job: Any
) -> Job:
    ids = tuple(range(100 * request, 100 * request + tokens))
    made = Job(Ticket(request, attempt, bytes(16)), ids, job.pop("emitted", ()), Sampling(), **job)
    worker._from_gateway(cast(Any, gateway), Prefill(made, "decode", DECODE_INCARNATION))
    return made


def connect(worker: PrefillWorker) -> SentMessages:
    """Decode's end of the link."""
    link, session = worker.links.to("decode"), SentMessages()
    link.session, link.writer, link.incarnation = cast(Any, session), ManualWriter(), DECODE_INCARNATION
    return session


def land_all(worker: PrefillWorker, decode: SentMessages) -> None:
    """Decode answers every Ready with a Landing."""
    worker._handoff.ask()
    for message in decode.taken():
        if isinstance(message, Ready):
            link = worker.links.to("decode")
            prompt = worker.prompts.find(message.ticket)
            assert prompt is not None
            pages = pages_needed(prompt.total, PAGE_TOKENS)
            worker.from_decode(link, Landing(message.ticket, 0, tuple(range(40, 40 + pages))))


@virtual
async def in_virtual_time(test: Any) -> None:
    worker = make_worker()
    await test(worker)
    await worker.links.aclose()


def test_a_prompt_larger_than_the_whole_pool_is_lost_at_once() -> None:
    async def test(worker: PrefillWorker) -> None:
        gateway = SentMessages()
        job = send(worker, gateway, 1, 16 * PAGE_TOKENS + 1)
        assert gateway.taken() == [Lost(job.ticket, Reason.TOO_LARGE)] and not worker.busy
        send(worker, gateway, 2, 16 * PAGE_TOKENS)
        assert gateway.taken() == [] and worker.busy

    in_virtual_time(test)


def test_a_higher_attempt_replaces_the_lower_one() -> None:
    async def test(worker: PrefillWorker) -> None:
        gateway = SentMessages()
        send(worker, gateway, 1, 8)
        send(worker, gateway, 1, 8, attempt=2)
        assert [prompt.ticket.attempt for prompt in worker.prompts] == [2]
        worker._from_gateway(cast(Any, gateway), Cancel(1, 1))
        assert worker.busy, "a Cancel of the lower attempt comes late"
        worker._from_gateway(cast(Any, gateway), Cancel(1, 2))
        assert not worker.busy

    in_virtual_time(test)


def test_the_end_of_a_gateway_drops_its_prompts_and_no_others() -> None:
    async def test(worker: PrefillWorker) -> None:
        first, second = SentMessages(), SentMessages()
        send(worker, first, 1, 8)
        send(worker, second, 2, 8)
        worker._gateway_ended(cast(Any, first))
        assert [prompt.ticket.request for prompt in worker.prompts] == [2]

    in_virtual_time(test)


def test_a_message_that_a_gateway_never_sends_here_is_an_error() -> None:
    async def test(worker: PrefillWorker) -> None:
        job = Job(Ticket(1, 1, bytes(16)), (1,), (), Sampling())
        with pytest.raises(BadMessage, match="a gateway does not send Open to a prefill worker"):
            worker._from_gateway(cast(Any, SentMessages()), Open(job, None))

    in_virtual_time(test)


def test_a_step_takes_the_most_senior_prompt_first_within_its_budget() -> None:
    async def test(worker: PrefillWorker) -> None:
        gateway, decode = SentMessages(), connect(worker)
        for request, priority in ((1, 0), (2, -60), (3, 60)):
            send(worker, gateway, request, 10, priority=priority)
        land_all(worker, decode)
        plan = worker.plan()
        rows = [(piece.tokens[0] // 100, piece.start, len(piece.tokens)) for piece in plan.pieces]
        assert rows == [(2, 0, 8), (1, 0, 4)], "chunks of 8, 12 rows in a step"

    in_virtual_time(test)


def test_prompts_that_have_not_landed_are_left_out_of_the_step() -> None:
    async def test(worker: PrefillWorker) -> None:
        connect(worker)
        send(worker, SentMessages(), 1, 10)
        worker._handoff.ask()
        assert worker.plan().pieces == ()

    in_virtual_time(test)


def test_the_first_token_goes_to_the_gateway_with_what_the_prompt_cost() -> None:
    async def test(worker: PrefillWorker) -> None:
        gateway, decode = SentMessages(), connect(worker)
        job = send(worker, gateway, 1, 6, emitted=(7, 8))
        land_all(worker, decode)
        await asyncio.sleep(0.5)
        plan = worker.plan()
        result = await worker.step(plan)
        worker.emit(plan, result)
        prefilled, tokens = gateway.taken()
        assert prefilled == Prefilled(job.ticket, cached_tokens=0, queued_seconds=0.5, computed_seconds=0.25)
        assert tokens == Tokens((TokenOf(job.ticket, Token(2, 9, -0.5)),)), "position 2 follows two emitted tokens"
        worker.retire(plan)
        assert worker.pages.counts().in_use == 2, "the pages wait for Landed"

    in_virtual_time(test)


def test_a_prompt_that_is_cancelled_during_its_step_shows_no_token_and_gives_its_pages_back_after_it() -> None:
    async def test(worker: PrefillWorker) -> None:
        gateway, decode = SentMessages(), connect(worker)
        send(worker, gateway, 1, 6)
        land_all(worker, decode)
        plan = worker.plan()
        step = asyncio.ensure_future(worker.step(plan))
        await asyncio.sleep(0.1)
        worker._from_gateway(cast(Any, gateway), Cancel(1, 1))
        worker.emit(plan, await step)
        assert gateway.taken() == [] and worker.pages.counts().in_use == 2
        worker.retire(plan)
        assert worker.pages.counts().in_use == 0 and not worker.busy

    in_virtual_time(test)


def test_load_counts_prompts_that_wait_and_tokens_that_are_not_computed() -> None:
    async def test(worker: PrefillWorker) -> None:
        decode = connect(worker)
        send(worker, SentMessages(), 1, 10)
        land_all(worker, decode)
        send(worker, SentMessages(), 2, 7)
        load = worker.prompts.load(tokens_per_second=30.0)
        assert load == Load(waiting=1, running=1, queued_tokens=17, free_pages=13, total_pages=16, tokens_per_second=30)

    in_virtual_time(test)
