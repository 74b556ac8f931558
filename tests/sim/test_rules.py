"""Every rule of docs/protocol.md: its counter-example is harmless with the guard, and does harm with the mutant."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from gateway.routing.router import Local
from mesh.messages.jobs import Sampling, Tier
from mesh.messages.kv_messages import Commit, Landed, Landing, Quiet, Resend
from mesh.messages.message import Message
from mesh.messages.orders import Open
from mesh.messages.reports import Tokens
from tests.mutants import rules as mutants
from tests.sim.busy import seem_busy
from tests.sim.cluster import Cluster
from tests.sim.loop import run_virtual

PROMPT = tuple(range(10))  # three pages
Scenario = Callable[[], Awaitable[list[str]]]


def of(kind: type[Message] | tuple[type[Message], ...], source: str = "", target: str = "") -> Callable[..., bool]:
    return lambda a, b, message: isinstance(message, kind) and a.startswith(source) and b.startswith(target)


async def first() -> list[str]:
    """Decode's token 1 overtakes prefill's token 0 on the other stream."""
    cluster = await Cluster(1).start(1, 1)
    release = cluster.network.hold(of(Tokens, "prefill"))
    cluster.ask(PROMPT)
    await asyncio.sleep(1)
    release()
    return await cluster.finish(20)


async def position() -> list[str]:
    """Both streams bring token 0. Prefill's copy arrives when the client has decode's."""
    cluster = await Cluster(1).start(1, 1)
    release = cluster.network.hold(of(Tokens, "prefill"))
    client = cluster.ask(PROMPT, Sampling(max_tokens=100))
    await cluster.until(lambda: len(client.seen) > 1)
    release()
    return await cluster.finish(20)


async def resend_count() -> list[str]:
    """Commit sent, decode finds damage and asks again, cancel, Commit arrives, the repeated span lands."""
    cluster = await Cluster(1).start(1, 1)
    cluster.fabric.spoil = 1
    resend, commit = cluster.network.hold(of(Resend)), cluster.network.hold(of(Commit))
    again = cluster.fabric.hold(lambda write: write.round == 1)
    client = cluster.ask(PROMPT)
    await asyncio.sleep(0.5)  # everything is written, Commit and Resend are on their ways
    resend()
    await asyncio.sleep(0.1)  # the repeated span is under way
    client.handle.cancel()
    await asyncio.sleep(0.1)
    commit()
    await asyncio.sleep(0.1)
    again()
    return await cluster.finish(20)


async def one_ready() -> list[str]:
    """Two Landings under way, the first declined by Quiet, its pages freed, the second accepted and written."""
    cluster = await Cluster(1, prefill_pages=5).start(1, 2)
    passed = list[Message]()

    def second(source: str, target: str, message: Message) -> bool:
        return source == "decode0" and isinstance(message, Landing) and (hold_all or bool(passed))

    hold_all = True
    landings = cluster.network.hold(second)
    landed = cluster.network.hold(of((Landed, Tokens), "decode1"))
    decode0 = next(w for w in cluster.gateway.workers.tier(Tier.DECODE) if w.hello.address == "decode0")
    others = [w for w in cluster.gateway.workers.tier(Tier.DECODE) if w is not decode0]
    for other in others:
        seem_busy(other, 100)  # the first request goes to decode0
    cluster.ask(PROMPT)
    await asyncio.sleep(0.35)  # Ready, and with the rule off again and again
    seem_busy(decode0, 1000)
    for other in others:
        seem_busy(other, 0)
    cluster.ask(tuple(range(50, 62)))  # takes the room in prefill's pool
    await asyncio.sleep(0.3)
    hold_all = False
    stream = next(s for s in cluster.network.streams if s.here == "prefill0" and s.peer == "decode0")
    stream.deliver()  # the first Landing: no room any more
    passed.append(Quiet)  # type: ignore[arg-type]
    await asyncio.sleep(0.02)
    landed()
    await asyncio.sleep(0.02)
    landings()
    return await cluster.finish(20)


async def requiet() -> list[str]:
    """The stream breaks while Quiet travels; both ends live on."""
    cluster = await Cluster(1, may_kill=False).start(1, 1)
    writes = cluster.fabric.hold(lambda write: True)
    quiet = cluster.network.hold(of(Quiet))
    client = cluster.ask(PROMPT)
    await asyncio.sleep(0.3)
    client.handle.cancel()
    await asyncio.sleep(0.1)
    writes()
    await asyncio.sleep(0.1)
    cluster.network.snap("prefill0", "decode0")
    quiet()
    return await cluster.finish(20)


async def sink() -> list[str]:
    """Two-sided: cancel, and the second half of a frame comes when its page is another request's."""
    cluster = await Cluster(1, one_sided=False, pages=4).start(1, 1)
    halves = cluster.fabric.hold(lambda write: write.into is not None)
    client = cluster.ask(PROMPT)
    await asyncio.sleep(0.3)
    client.handle.cancel()
    await asyncio.sleep(0.1)
    halves()
    cluster.ask(tuple(range(20, 30)))
    return await cluster.finish(20)


async def incarnation() -> list[str]:
    """Prefill stopped in mid-write and restarted at its address; the new process answers for the old one."""
    cluster = await Cluster(1, may_kill=False, local=Local.NEVER).start(1, 1)
    old = cluster.processes["prefill0"]
    writes = cluster.fabric.hold(lambda write: write.writer == old.incarnation)
    cluster.ask(PROMPT)
    await asyncio.sleep(0.3)
    await cluster.kill("prefill0", zombie=True)
    await cluster.add(Tier.PREFILL, "prefill0")
    await asyncio.sleep(3)
    writes()  # the old process thaws
    await asyncio.sleep(0.1)
    cluster.fabric.died(old.incarnation)
    return await cluster.finish(20)


class CountingRandom(Random):
    """A gateway that counts its requests from one."""

    def getrandbits(self, bits: int) -> int:
        if bits != 63:
            return super().getrandbits(bits)
        self.counted = getattr(self, "counted", 0) + 1
        return self.counted


async def ticket() -> list[str]:
    """The gateway restarts and counts from one; Quiet of the old attempt meets the landing of the new one."""
    cluster = await Cluster(1, gateway_random=CountingRandom(1), may_kill=False).start(2, 1)
    old = cluster.fabric.hold(lambda write: True)
    client = cluster.ask(PROMPT)
    await asyncio.sleep(0.3)
    await cluster.restart_gateway(CountingRandom(2))
    cluster.clients.remove(client)  # it lost its gateway, and comes back below
    if client.task is not None:
        client.task.cancel()
    await cluster.until(lambda: len(cluster.gateway.workers) == 3)
    cluster.ask(PROMPT)
    new_nonce = cluster.gateway.sequencer.requests[1].ticket
    assert new_nonce is not None
    new = cluster.fabric.hold(lambda write: write.ticket == new_nonce.pack())
    await asyncio.sleep(0.3)
    old()  # the old writes land, and their Quiet comes
    await asyncio.sleep(0.3)
    new()
    return await cluster.finish(20)


async def attempt() -> list[str]:
    """A token of attempt 1 arrives when attempt 2, in another numerics class, has begun."""
    classes = {"prefill1": "class-b", "decode1": "class-b"}
    cluster = await Cluster(1, numerics=classes).start(2, 2)
    for worker in cluster.gateway.workers:
        seem_busy(worker, 100 * (worker.hello.numerics == "class-b"))
    tokens = cluster.network.hold(of(Tokens, ""))
    cluster.ask(PROMPT)
    await asyncio.sleep(0.3)
    await cluster.kill("decode0")
    stale = cluster.network.hold(of(Tokens, "prefill0"))
    tokens()
    stale_now = cluster.network.hold(of(Tokens, "prefill1"))
    late = cluster.network.hold(of(Tokens, "decode1"))
    await asyncio.sleep(0.01)
    stale()
    await asyncio.sleep(0.3)
    late()
    stale_now()
    return await cluster.finish(20)


async def early() -> list[str]:
    """Ready overtakes Open."""
    cluster = await Cluster(1).start(1, 1)
    release = cluster.network.hold(of(Open))
    cluster.ask(PROMPT)
    await asyncio.sleep(0.25)
    release()
    return await cluster.finish(20)


async def quarantine() -> list[str]:
    """Shared memory: cancel in mid-push, and the write lands when its page is another request's."""
    cluster = await Cluster(1, pages=4).start(1, 1)
    writes = cluster.fabric.hold(lambda write: True)
    client = cluster.ask(PROMPT)
    await asyncio.sleep(0.3)
    client.handle.cancel()
    await asyncio.sleep(0.1)
    writes()
    cluster.ask(tuple(range(20, 30)))
    return await cluster.finish(20)


async def checksum() -> list[str]:
    """A span arrives damaged."""
    cluster = await Cluster(1).start(1, 1)
    cluster.fabric.spoil = 1
    cluster.ask(PROMPT)
    return await cluster.finish(20)


async def behind() -> list[str]:
    """Windows: a text moves on over many pages, each of which it gives back behind itself."""
    cluster = await Cluster(1, pages=8, window=9).start(1, 1)
    cluster.ask(PROMPT * 3, Sampling(max_tokens=40))
    return await cluster.finish(20)


async def kept() -> list[str]:
    """Some layers have windows: the same text needs all pages of the others."""
    cluster = await Cluster(1, pages=32, window=9, full_layers=1).start(1, 1)
    cluster.ask(PROMPT * 3, Sampling(max_tokens=40))
    return await cluster.finish(20)


SCENARIOS: dict[str, Scenario] = {
    scenario.__name__: scenario
    for scenario in (
        first,
        position,
        resend_count,
        one_ready,
        requiet,
        sink,
        incarnation,
        ticket,
        attempt,
        early,
        quarantine,
        checksum,
        behind,
        kept,
    )
}


def test_every_rule_with_a_mutant_has_its_counter_example() -> None:
    assert set(SCENARIOS) == set(mutants.RULES)


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_counter_example_is_harmless(name: str) -> None:
    async def main() -> list[str]:
        return await SCENARIOS[name]()

    assert run_virtual(main()) == []


@pytest.mark.parametrize("name", SCENARIOS)
def test_without_the_rule_it_does_harm(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> list[str]:
        return await SCENARIOS[name]()

    mutants.apply(name, monkeypatch.setattr)
    assert run_virtual(main()) != []
