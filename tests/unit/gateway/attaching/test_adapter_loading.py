"""Loads and unloads at a gateway, with workers whose answers the test writes."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from gateway.attaching import adapter_loading
from gateway.attaching.adapter_loading import AdapterLoading
from gateway.attaching.adapter_names import AdapterNames
from gateway.routing.registry import Workers
from gateway.workers.attached import AttachedWorker
from mesh.errors import InvalidRequest, Unavailable
from mesh.messages.adapters import (
    AbandonAdapter,
    AdapterRead,
    Adapters,
    AssignAdapter,
    NamedAdapter,
    ReadAdapter,
    UnloadAdapter,
)
from mesh.messages.jobs import Tier
from mesh.messages.reports import Hello, Load, PrefixChange

ONE, TWO = "1" * 64, "2" * 64


class ScriptedSession:
    """The session of a worker that finds `digest` in every folder, or answers with `fault`."""

    def __init__(self, digest: str, fault: str = "") -> None:
        self.digest, self.fault = digest, fault
        self.sent = list[Any]()
        self.answer: Callable[[Any], None] = lambda message: None
        self.names = dict[str, NamedAdapter]()
        self._reads = dict[int, NamedAdapter]()

    def send(self, message: Any) -> None:
        self.sent.append(message)
        match message:
            case ReadAdapter(number, name, folder):
                self._reads[number] = NamedAdapter(name, self.digest, folder)
                self.answer(AdapterRead(number, "" if self.fault else self.digest, self.fault))
            case AssignAdapter(number):
                self.names[self._reads[number].name] = self._reads[number]
                self.answer(Adapters(tuple(self.names.values())))
            case UnloadAdapter(name):
                self.names.pop(name, None)
                self.answer(Adapters(tuple(self.names.values())))


class FakeTier:
    def __init__(self) -> None:
        self.workers = Workers()
        self.names = AdapterNames({}, ("m",))
        self.loading = AdapterLoading(self.workers, self.names)
        self.sessions = list[ScriptedSession]()

    def add(self, digest: str = ONE, fault: str = "", *, adapters: tuple[NamedAdapter, ...] = ()) -> AttachedWorker:
        number, session = len(self.sessions) + 1, ScriptedSession(digest, fault)
        session.names = {each.name: each for each in adapters}
        hello = Hello(
            *(Tier.DECODE, number, f"w{number}:1", "fp32", "print", "m", "0", 4, 4096, Load(), PrefixChange(0)),
            name=f"w{number}",
            adapters=adapters,
            loads_adapters=True,
        )
        worker = AttachedWorker(hello, cast(Any, session))
        loop = asyncio.get_running_loop()
        session.answer = lambda message: cast(Any, loop.call_soon(self.loading.on_report, worker, message))
        self.sessions.append(session)
        self.workers.add(worker)
        self.loading.attached(worker)
        return worker


@pytest.fixture
async def tier() -> FakeTier:
    return FakeTier()


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_load_is_over_when_every_worker_has_the_name(tier: FakeTier) -> None:
    workers = [tier.add() for _ in range(3)]
    found = await tier.loading.load("m", "a", "/a")
    assert found.digest == ONE and tier.names.names() == ("a",)
    assert all(worker.adapters["a"].digest == ONE for worker in workers)


@pytest.mark.parametrize(
    ("digest", "fault", "what"), [(TWO, "", "find different adapters"), (ONE, "no room", "no room")]
)
async def test_one_worker_that_cannot_keeps_the_adapter_from_all(
    digest: str, fault: str, what: str, tier: FakeTier
) -> None:
    tier.add()
    tier.add(digest, fault)
    with pytest.raises(InvalidRequest, match=what):
        await tier.loading.load("m", "a", "/a")
    assert tier.names.names() == ()
    for session in tier.sessions:
        assert isinstance(session.sent[-1], AbandonAdapter) and not session.names


async def test_a_worker_that_leaves_in_the_middle_fails_the_load(tier: FakeTier) -> None:
    tier.add()
    silent = tier.add()
    tier.sessions[1].answer = lambda message: None
    loading = asyncio.ensure_future(tier.loading.load("m", "a", "/a"))
    await settle()
    tier.workers.remove(silent)
    tier.loading.left(silent)
    with pytest.raises(InvalidRequest, match="w2: it left while it read the folder"):
        await loading
    assert tier.names.names() == ()


async def test_without_workers_or_with_a_name_of_a_model_nothing_is_loaded(tier: FakeTier) -> None:
    with pytest.raises(Unavailable, match="no worker of model 'm'"):
        await tier.loading.load("m", "a", "/a")
    tier.add()
    for name, what in (("m", "is the name of a model"), ("", "is no name"), ("a\n", "is no name")):
        with pytest.raises(InvalidRequest, match=what):
            await tier.loading.load("m", name, "/a")


async def test_while_workers_differ_a_name_stands_for_what_it_stood_for(tier: FakeTier) -> None:
    old, new = NamedAdapter("a", ONE, "/a"), NamedAdapter("a", TWO, "/a")
    first, second = tier.add(adapters=(old,)), tier.add(TWO, adapters=(new,))
    assert cast(Any, tier.names.get("a")).digest == ONE
    tier.loading.on_report(first, Adapters((new,)))
    assert cast(Any, tier.names.get("a")).digest == TWO
    tier.loading.on_report(second, Adapters((old,)))
    assert cast(Any, tier.names.get("a")).digest == TWO


async def test_what_was_unloaded_stays_so_until_another_gateway_loads_it(tier: FakeTier) -> None:
    named = NamedAdapter("a", ONE, "/a")
    worker = tier.add(adapters=(named,))
    await tier.loading.unload("a")
    assert tier.names.names() == () and not tier.sessions[0].names
    again = tier.add(adapters=(named,))
    await settle()
    assert tier.names.names() == () and again.adapters == {}, "its configuration has the name still"
    tier.loading.on_report(worker, Adapters((named,)))
    assert tier.names.names() == ("a",)


async def test_a_worker_that_comes_later_gets_what_the_others_have(tier: FakeTier) -> None:
    tier.add()
    await tier.loading.load("m", "a", "/a")
    late, other = tier.add(), tier.add(TWO)
    await settle()
    assert late.adapters["a"].digest == ONE
    assert other.adapters == {} and isinstance(tier.sessions[2].sent[-1], AbandonAdapter), "it finds another content"
    assert cast(Any, tier.names.get("a")).digest == ONE


@pytest.mark.parametrize("digest", [ONE, TWO])
async def test_a_worker_that_attaches_while_others_read_has_the_adapter_too_or_nobody_has(
    tier: FakeTier, digest: str
) -> None:
    tier.add()
    answer, held = tier.sessions[0].answer, list[Any]()
    tier.sessions[0].answer = held.append
    loading = asyncio.ensure_future(tier.loading.load("m", "a", "/a"))
    await settle()
    late = tier.add(digest)
    tier.sessions[0].answer = answer
    answer(held.pop())
    if digest == ONE:
        await loading
        assert late.adapters["a"].digest == ONE
        return
    with pytest.raises(InvalidRequest, match="w1 and w2 find different adapters"):
        await loading
    assert all(isinstance(session.sent[-1], AbandonAdapter) for session in tier.sessions)


@pytest.mark.parametrize("fault", ["", "no such folder"])
async def test_a_worker_that_attaches_before_others_report_the_name_has_it_too_or_the_load_fails(
    tier: FakeTier, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter_loading, "REPORT_SECONDS", 0.05)
    tier.add()
    answer, held = tier.sessions[0].answer, list[Any]()
    tier.sessions[0].answer = lambda message: held.append(message) if isinstance(message, Adapters) else answer(message)
    loading = asyncio.ensure_future(tier.loading.load("m", "a", "/a"))
    await settle()
    late = tier.add(fault=fault)  # the name is assigned, and no gateway knows that yet
    assert held and tier.names.names() == ()
    await settle()
    answer(held.pop())
    if not fault:
        await loading
        assert late.adapters["a"].digest == ONE
        return
    with pytest.raises(Unavailable, match="w2 did not load adapter 'a'"):
        await loading
