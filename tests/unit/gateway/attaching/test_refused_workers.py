"""Workers that the gateway does not take: each is named with its reason, and the requests of the others go on."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from gateway.attaching import attaching
from gateway.attaching.refusals import FORGET_SECONDS, MOST, Refusals, Until
from gateway.attaching.served_models import ServedModel, ServedModels
from gateway.attaching.service import Gateway
from gateway.core.interface import ChoiceRequest
from gateway.routing.router import Local
from mesh.messages.jobs import End, Sampling, Tier, Token
from mesh.messages.message import Message
from mesh.messages.orders import Open
from mesh.messages.reports import Hello, Load, Measure, Measures, PrefixChange, Register, TokenOf, Tokens
from mesh.network.interface import Channel, Stream
from mesh.network.memory_network import MemoryNetwork
from mesh.rules import RULES
from mesh.sessions.session import Session
from tests.sim.loop import virtual

LOAD = Load(free_pages=64, total_pages=64, tokens_per_second=100.0)
HELLO = Hello(Tier.DECODE, 0, "", "class", "print", "tiny", "0", 32, 512, LOAD, PrefixChange(0, (), (), True))


class OneTokenWorker:
    """A decode worker that answers every request with one token."""

    def __init__(self, network: MemoryNetwork, at: str, **fields: Any) -> None:
        self.address, self.opened = at, list[Open]()
        self.hello = replace(HELLO, **{"address": at, "name": at} | fields)
        self.session: Session | None = None
        self._host = network.host(at)

    async def join(self, incarnation: int | None = None) -> None:
        """Listen and register, with this incarnation or that of its Hello."""
        if self.session is None:
            await self._host.listen(self.address, {Channel.ATTACH: self._accept})
        await self.register(incarnation)
        await asyncio.sleep(1.0)

    async def register(self, incarnation: int | None = None) -> None:
        shown = self.hello.incarnation if incarnation is None else incarnation
        await self._host.register("gateway", Register(self.address, Tier.DECODE, shown))

    def send(self, message: Message) -> None:
        assert self.session is not None
        self.session.send(message)

    async def _accept(self, stream: Stream) -> None:
        self.session = Session(stream, rules=RULES, name="gateway")
        self.session.send(self.hello)
        await self.session.run(self._receive)

    def _receive(self, message: Message) -> None:
        if isinstance(message, Open):
            self.opened.append(message)
            self.send(Tokens((TokenOf(message.job.ticket, Token(0, 5, end=End.LENGTH)),)))


class GatewayWorld:
    def __init__(self) -> None:
        self.network = MemoryNetwork(Random(1))
        served = ServedModels([ServedModel(("tiny",), context_tokens=256)])
        self.gateway = Gateway(self.network.host("gateway"), random=Random(1), model=served, local=Local.ALWAYS)

    def worker(self, at: str, **fields: Any) -> OneTokenWorker:
        return OneTokenWorker(self.network, at, **fields)

    async def ask(self, prompt: int = 8) -> list[int]:
        choice = ChoiceRequest("r", "tiny", tuple(range(prompt)), (), Sampling(max_tokens=1))
        async with asyncio.timeout(5.0):
            return [token.token async for token in self.gateway.submit(choice).events()]


@virtual
async def in_world(story: Callable[[GatewayWorld], Awaitable[None]]) -> None:
    world = GatewayWorld()
    await world.gateway.listen("gateway")
    try:
        await story(world)
    finally:
        await world.gateway.aclose()


BAD = {
    "page_tokens": 0,
    "context_tokens": 1,
    "load": replace(LOAD, tokens_per_second=-5.0),
    "name": "decode\nforged",
    "model_hash": "h" * 999,
}


@pytest.mark.parametrize("field", BAD)
def test_a_worker_with_a_bad_field_is_refused_by_its_name_and_harms_nobody(field: str) -> None:
    async def story(world: GatewayWorld) -> None:
        good, bad = world.worker("good", incarnation=1), world.worker("bad", **{"incarnation": 2, field: BAD[field]})
        await good.join()
        await bad.join()
        (refused,) = world.gateway.refused_workers()
        assert refused.isprintable() and f" at bad: {field}" in refused
        assert world.gateway.facts("tiny").context_tokens == 512 and len(world.gateway.workers) == 1
        for _ in range(8):
            assert await world.ask() == [5]
        assert len(good.opened) == 8 and bad.opened == []
        assert bad.session is not None
        bad.session.close()
        await asyncio.sleep(1.0)
        assert world.gateway.refused_workers() == ()

    in_world(story)


def test_negative_control_without_the_checks_a_page_of_no_tokens_breaks_the_requests_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attaching, "hello_problem", lambda hello: "")

    async def story(world: GatewayWorld) -> None:
        await world.worker("good", incarnation=1).join()
        await world.worker("bad", incarnation=2, page_tokens=0).join()
        with pytest.raises(ZeroDivisionError):
            await world.ask()

    in_world(story)


@pytest.mark.parametrize("speed", [-5.0, math.nan, math.inf])
def test_an_attached_worker_whose_load_turns_bad_leaves_and_stays_out(speed: float) -> None:
    async def story(world: GatewayWorld) -> None:
        good, bad = world.worker("good", incarnation=1), world.worker("bad", incarnation=2)
        await good.join()
        await bad.join()
        assert len(world.gateway.workers) == 2
        bad.send(replace(LOAD, tokens_per_second=speed))
        await asyncio.sleep(1.0)
        for _ in range(40):
            await bad.register()
            await asyncio.sleep(1.0)
        (refused,) = world.gateway.refused_workers()
        assert refused.startswith("bad at bad: load.tokens_per_second") and len(world.gateway.workers) == 1
        assert await world.ask() == [5] and len(good.opened) == 1
        await asyncio.sleep(FORGET_SECONDS + 1.0)
        assert world.gateway.refused_workers() == ()

    in_world(story)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_attached_worker_that_reports_a_number_that_is_none_leaves_and_alarms_can_still_be_made(
    value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: without the check nobody gets the alarms of any worker."""

    async def story(world: GatewayWorld) -> None:
        await world.worker("good", incarnation=1).join()
        for incarnation, name in enumerate(("bad", "unchecked"), 2):
            bad = world.worker(name, incarnation=incarnation)
            await bad.join()
            bad.send(Measures((Measure("stuck", value),), ()))
            await asyncio.sleep(1.0)
            if name == "bad":
                assert world.gateway.alarms() == () and len(world.gateway.workers) == 1
                monkeypatch.setattr(attaching, "report_problem", lambda message: "")
        with pytest.raises((ValueError, OverflowError), match="cannot convert float"):
            world.gateway.alarms()

    in_world(story)


def test_a_second_hello_on_one_stream_ends_it() -> None:
    async def story(world: GatewayWorld) -> None:
        worker = world.worker("one", incarnation=1)
        await worker.join()
        worker.send(replace(worker.hello, incarnation=99))
        await asyncio.sleep(1.0)
        assert len(world.gateway.workers) == 0
        assert world.gateway.refused_workers() == ("one at one: hello: comes once, at the beginning",)

    in_world(story)


def test_a_stranger_with_a_living_workers_incarnation_is_not_dialled_and_the_living_one_stays() -> None:
    async def story(world: GatewayWorld) -> None:
        real, stranger = world.worker("real", incarnation=7), world.worker("stranger", incarnation=7)
        await real.join()
        session = real.session
        await stranger.join()
        assert stranger.session is None and real.session is session and session is not None and not session.ended
        (refused,) = world.gateway.refused_workers()
        assert refused == "decode at stranger: incarnation: belongs to real at real, which is attached"
        for _ in range(16):
            assert await world.ask() == [5]
        assert len(real.opened) == 16

    in_world(story)


def test_a_worker_whose_incarnation_another_showed_first_gets_in_when_that_one_has_left() -> None:
    """Both registered before either was dialled. A session that stayed would keep the worker from registering."""

    async def story(world: GatewayWorld) -> None:
        first, second = world.worker("first", incarnation=7), world.worker("second", incarnation=7)
        await asyncio.gather(first.join(), second.join())
        assert first.session is not None and second.session is not None, "both were dialled"
        here, elsewhere = (second, first) if first.session.ended else (first, second)
        assert here.session is not None and not here.session.ended
        assert elsewhere.session is not None and elsewhere.session.ended, "so it registers again"
        here.session.close()
        await asyncio.sleep(1.0)
        async with asyncio.timeout(30.0):
            while world.gateway.workers.get(7) is None:
                await elsewhere.join()
        assert await world.ask() == [5] and len(elsewhere.opened) == 1

    in_world(story)


@pytest.mark.parametrize("field", ["incarnation", "address", "tier"])
def test_a_stranger_that_registers_as_itself_cannot_say_hello_as_another(field: str) -> None:
    """A stranger that were taken would replace the living worker and get its prompts."""
    changed = {"incarnation": 7, "address": "real", "tier": Tier.PREFILL}

    async def story(world: GatewayWorld) -> None:
        real = world.worker("real", incarnation=7)
        stranger = world.worker("stranger", **{"incarnation": 8, field: changed[field]})
        await real.join()
        await stranger.join(incarnation=8)
        assert world.gateway.workers.get(7) is not None and len(world.gateway.workers) == 1
        (refused,) = world.gateway.refused_workers()
        assert refused == f"stranger at stranger: {field}: differs from what it registered with"
        for _ in range(16):
            assert await world.ask() == [5]
        assert len(real.opened) == 16 and stranger.opened == []

    in_world(story)


def test_a_stranger_that_registers_first_cannot_keep_the_real_worker_from_being_dialled() -> None:
    async def story(world: GatewayWorld) -> None:
        silent = world.network.host("silent")

        async def hold(stream: Stream) -> None:
            await asyncio.sleep(60.0)  # no Hello comes

        await silent.listen("silent", {Channel.ATTACH: hold})
        await silent.register("gateway", Register("silent", Tier.DECODE, 7))
        await asyncio.sleep(0.1)
        await world.worker("real", incarnation=7).join()
        assert len(world.gateway.workers) == 1 and await world.ask() == [5]

    in_world(story)


def test_an_address_of_control_characters_is_not_dialled() -> None:
    async def story(world: GatewayWorld) -> None:
        await world.network.host("x").register("gateway", Register("a\nb", Tier.DECODE, 7))
        await asyncio.sleep(1.0)
        assert [each.isprintable() for each in world.gateway.refused_workers()] == [True]

    in_world(story)


def test_refusals_are_bounded() -> None:
    refusals = Refusals()
    for number in range(10 * MOST):
        refusals.add((number, "a"), Tier.DECODE, "w", "why", 0.0, Until.TRIES_AGAIN)
    assert len(refusals.texts(0.0)) == MOST and refusals.texts(FORGET_SECONDS + 1.0) == ()
