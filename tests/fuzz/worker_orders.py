"""Fuzz target of a worker's half of Attach: a gateway sends any order, in any order, for any ticket.

The product's worker of either tier runs its loop over a model that is fast. An order is refused by BadMessage or by
Lost; the loop never fails, a sound request beside them gets all its tokens, and in the end every page is back."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any, cast, get_args

from engine.pool.pages import PagePool
from kvtransfer.memory import Fabric, MemoryPool, MemoryTransport
from mesh.messages.codec import DOWN
from mesh.messages.jobs import Job, Sampling, Ticket, Tier
from mesh.messages.message import Down, Drain, Message
from mesh.messages.orders import Cancel, Examination, Examine, Open, Prefill
from mesh.messages.reports import Tokens
from mesh.network.memory_network import MemoryNetwork
from mesh.sessions.session import BadMessage
from tests.fuzz.case_loop import CaseLoop, case_loop
from tests.fuzz.cases import Wrong, chance
from tests.fuzz.drawn_messages import drawn, odd, over_the_wire
from tests.sim.workers import WorkerOptions, start_worker

KINDS = get_args(Down)
PAGES, SOUND, ANSWER = 64, 77, 5
OPTIONS = WorkerOptions(chunk_tokens=8)


class _Gateway:
    """A session that keeps what the worker sends."""

    name, ended, expired = "gateway", False, False

    def __init__(self) -> None:
        self.sent: list[Message] = []

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def close(self) -> None:
        self.ended = True


def worker_orders(rng: Random) -> bool:
    """A case reaches deep states when the worker has computed something for a drawn order."""
    with case_loop() as loop:
        tier = rng.choice((Tier.PREFILL, Tier.DECODE, Tier.DECODE))
        transport = MemoryTransport(Fabric(Random(1)), "memory", True)
        pool = MemoryPool(OPTIONS.shape(tier), PAGES)
        pages = PagePool(PAGES, clear=pool.clear)
        started = loop.run(
            start_worker(
                OPTIONS,
                MemoryNetwork(Random(1)).host("worker"),
                transport,
                tier=tier,
                name="worker",
                incarnation=5,
                pool=pool,
                pages=pages,
                choose=lambda mine, theirs: ("memory", ""),
                on_write=lambda page: None,
            )
        )
        worker, gateway, bad = started.worker, _Gateway(), _Gateway()
        running = loop.create_task(worker.run())
        sessions = cast(Any, [gateway, bad])
        worker.attachments.sessions += sessions
        if tier is Tier.DECODE:
            _give(worker, gateway, _open(SOUND, range(6)))
        for _ in range(rng.randint(2, 6)):
            _order(rng, worker, bad)
            _pass(loop, running, rng.choice((0.0, 0.002, 0.02)))
        _pass(loop, running, 0.5)
        deep = any(isinstance(message, Tokens) for message in bad.sent)
        if tier is Tier.DECODE:
            _look_at_answer(gateway)
            _give(worker, gateway, Cancel(SOUND, 1))
        worker.attachments.sessions.remove(cast(Any, bad))
        worker.attachments._on_end(cast(Any, bad))
        _pass(loop, running, 0.1)
        if pages.counts().in_use or worker.ledger.counts().get("ledger_broken"):
            raise Wrong(f"pages are kept for ever: {pages.counts()}")
        return deep


def _order(rng: Random, worker: Any, bad: _Gateway) -> None:
    message = over_the_wire(rng, DOWN, _drawn(rng), broken=0.1)
    if message is None or isinstance(message, Drain):
        return
    try:
        _give(worker, bad, message)
    except BadMessage:
        pass


def _give(worker: Any, session: _Gateway, message: Message) -> None:
    worker.attachments._receive(session, message)


def _drawn(rng: Random) -> Down:
    request, attempt = rng.choice((1, 2, 3)), rng.choice((1, 1, 2))
    tokens = range(rng.choice((1, 4, 9)))
    order: Down
    match rng.randrange(6):
        case 0:
            order = Cancel(request, attempt)
        case 1:
            order = cast(Down, drawn(rng, rng.choice(KINDS)))
        case 2:
            order = Examine(_job(request, tokens, attempt), Examination(rng.choice((0, 2))))
        case 3:
            order = Prefill(_job(request, tokens, attempt), rng.choice(("nowhere", "", "worker", "\0")), 1)
        case _:
            order = _open(request, tokens, attempt, rng.choice((None, None, 9)))
    if isinstance(order, Open | Prefill | Examine) and chance(rng, 0.3):
        job = order.job
        job = odd(rng, job) if chance(rng, 0.5) else replace(job, sampling=odd(rng, job.sampling))
        order = replace(order, job=job)
    return odd(rng, order) if chance(rng, 0.1) else order


def _open(request: int, tokens: Sequence[int], attempt: int = 1, prefill: int | None = None) -> Open:
    return Open(_job(request, tokens, attempt), prefill)


def _job(request: int, tokens: Sequence[int], attempt: int = 1) -> Job:
    ticket = Ticket(request, attempt, bytes([attempt]) * 16)
    return Job(ticket, tuple(token + 1 for token in tokens), (), Sampling(max_tokens=ANSWER))


def _pass(loop: CaseLoop, running: "asyncio.Task[None]", seconds: float) -> None:
    loop.run(asyncio.sleep(seconds))
    if running.done():
        running.result()
        raise Wrong("the worker's loop has ended")


def _look_at_answer(gateway: _Gateway) -> None:
    """The sound request got every position once."""
    items = [item for message in gateway.sent if isinstance(message, Tokens) for item in message.items]
    positions = [item.token.position for item in items if item.ticket.request == SOUND]
    if positions != list(range(ANSWER)):
        raise Wrong(f"the request beside the bad ones got the positions {positions}")
