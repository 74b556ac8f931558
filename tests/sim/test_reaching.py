"""Workers and gateways that do not reach each other: who tries again, who goes elsewhere, and who is given up when."""

import asyncio

import pytest

from decode_svc.worker import DecodeWorker
from gateway.routing.router import Local
from mesh.messages.jobs import Reason, Tier
from mesh.messages.message import Heartbeat, Message
from mesh.messages.orders import Prefill
from mesh.messages.reports import Hello, Lost, Register
from mesh.rules import RULES
from tests.sim.busy import seem_busy
from tests.sim.cluster import Cluster
from tests.sim.loop import virtual

PROMPT = tuple(range(10))  # three pages


@pytest.mark.parametrize("decodes", [1, 2])
@pytest.mark.parametrize("prefills", [1, 2])
@virtual
async def test_when_prefill_cannot_reach_decode_the_request_goes_elsewhere(prefills: int, decodes: int) -> None:
    cluster = Cluster(1)
    cluster.refuse = lambda decode, prefill: "not with me" if decode == "decode0" else ""
    await cluster.start(prefills, decodes)
    if decodes == 2:
        workers = {worker.hello.address: worker for worker in cluster.gateway.workers}
        seem_busy(workers["decode1"], 1000)  # so that decode0 is tried first
    lost = set[Reason]()

    def listen(source: str, target: str, message: Message) -> bool:
        if isinstance(message, Lost):
            lost.add(message.reason)
        return False

    cluster.network.hold(listen)
    client = cluster.ask(PROMPT)
    assert await cluster.finish(10 * prefills * (3 - decodes)) == []
    assert lost == {Reason.CANNOT_PUSH} and len(client.seen) == 6
    assert cluster.decode(decodes - 1).plans


@virtual
async def test_a_session_that_ends_once_makes_no_decode_worker_prefill() -> None:
    cluster = await Cluster(1).start(1, 1)
    release = cluster.fabric.hold(lambda write: True)
    cluster.ask(PROMPT)
    assert await cluster.until(lambda: len(cluster.fabric.waiting) == 6)
    cluster.network.snap("prefill0", "decode0")
    await asyncio.sleep(0.01)
    release()
    assert await cluster.finish(5) == []
    assert all(len(piece.tokens) == 1 for plan in cluster.decode().plans or [] for piece in plan.pieces)


@virtual
async def test_when_decode_may_not_prefill_the_same_pair_is_tried_until_it_works() -> None:
    cluster = Cluster(1, local=Local.NEVER)
    refusing = True
    cluster.refuse = lambda decode, prefill: "not now" if refusing else ""
    await cluster.start(1, 1)
    client = cluster.ask(PROMPT)
    await asyncio.sleep(25)
    assert not client.ended and not client.seen
    refusing = False
    assert await cluster.finish(10) == []


@virtual
async def test_a_prompt_that_comes_when_its_link_is_about_to_be_forgotten_is_not_lost() -> None:
    """No session with decode begins for almost a minute; then a prompt comes, and the gateway cannot know that."""
    cluster = Cluster(1, local=Local.NEVER)
    refusing = False
    cluster.refuse = lambda decode, prefill: "not now" if refusing else ""
    await cluster.start(1, 1)
    cluster.ask(PROMPT)
    assert await cluster.finish() == []
    refusing = True
    cluster.network.snap("prefill0", "decode0")
    link = cluster.prefill().links.get("decode0")
    assert link is not None
    await asyncio.sleep(59.0)
    late = cluster.ask((*PROMPT, 1, 2, 3))
    await asyncio.sleep(3.0)
    refusing = False
    assert await cluster.finish(20) == []
    assert len(late.seen) == 6


@pytest.mark.parametrize("name", ["prefill0", "decode0"])
@virtual
async def test_a_worker_that_falls_silent_is_given_up_after_its_lease_and_not_before(name: str) -> None:
    cluster = await Cluster(1).start(2, 2)
    loop = asyncio.get_running_loop()
    cluster.freeze(name)
    began = loop.time()
    assert await cluster.until(lambda: len(cluster.gateway.workers) == 3, 20)
    assert 5.0 - 1.0 < loop.time() - began < 5.0 + 1.5
    cluster.thaw(name)
    assert await cluster.until(lambda: len(cluster.gateway.workers) == 4, 5), "it registers again"
    cluster.ask(PROMPT)
    assert await cluster.finish() == []


@virtual
async def test_an_idle_mesh_keeps_its_sessions_by_heartbeats_alone() -> None:
    cluster = await Cluster(1).start(1, 1)
    cluster.ask(PROMPT)
    assert await cluster.finish() == []
    await asyncio.sleep(1)
    began = len(cluster.network.log)
    await asyncio.sleep(60)
    quiet = {what for _, _, _, what in cluster.network.log[began:]}
    assert quiet == {"Heartbeat"} and len(cluster.gateway.workers) == 2
    cluster.network.hold(lambda source, target, message: isinstance(message, Heartbeat) and target == "gateway")
    assert await cluster.until(lambda: len(cluster.gateway.workers) < 2, 7), "without them it would not"


@virtual
async def test_a_worker_that_registers_twice_is_dialed_once() -> None:
    cluster = Cluster(1)
    await cluster.gateway.listen("gateway")
    hello = cluster.network.hold(lambda source, target, message: isinstance(message, Hello))
    process = await cluster.add(Tier.DECODE, "decode0")
    await asyncio.sleep(0.1)
    for _ in range(3):
        cluster.gateway.attaching.on_register(Register("decode0", Tier.DECODE, process.incarnation))
        await asyncio.sleep(0.1)
    assert len(process.worker.attachments.sessions) == 1
    hello()
    await asyncio.sleep(0.1)
    cluster.gateway.attaching.on_register(Register("decode0", Tier.DECODE, process.incarnation))
    await asyncio.sleep(0.1)
    assert len(process.worker.attachments.sessions) == 1 == len(cluster.gateway.workers)


@virtual
async def test_a_worker_that_could_not_be_dialed_is_dialed_again_when_it_registers_again() -> None:
    cluster = Cluster(1)
    await cluster.gateway.listen("gateway")
    process = await cluster.add(Tier.DECODE, "decode0")
    cluster.network.unlisten("decode0")
    await asyncio.sleep(2.5)
    assert len(cluster.gateway.workers) == 0
    assert isinstance(process.worker, DecodeWorker)
    await process.worker.listen("decode0")
    assert await cluster.until(lambda: len(cluster.gateway.workers) == 1, 2)


@virtual
async def test_a_worker_whose_address_another_process_registers_too_comes_back_when_its_session_breaks() -> None:
    """The gateway dials that process and reaches the worker. A second session that stayed would keep the worker from
    registering once its own has ended."""
    cluster = await Cluster(1).start(1, 1)
    own = {id(stream) for stream in cluster.network.streams}
    for _ in range(2):
        await cluster.network.register("gateway", Register("decode0", Tier.DECODE, 99))
        await asyncio.sleep(1.0)
    (refused,) = cluster.gateway.refused_workers()
    assert refused == "decode0 at decode0: incarnation: differs from what it registered with"
    assert all(id(stream) in own or stream._closed for stream in cluster.network.streams)
    for stream in cluster.network.streams:
        if id(stream) in own and {stream.here, stream.peer} == {"gateway", "decode0"}:
            stream.snap()
    await asyncio.sleep(2 * RULES.heartbeat_seconds)
    assert len(cluster.gateway.workers) == 2
    cluster.ask(PROMPT)
    assert await cluster.finish(5) == []


@virtual
async def test_a_prefill_message_that_never_arrives_is_made_up_for_by_the_end_of_its_session() -> None:
    cluster = await Cluster(1).start(2, 1)
    cluster.network.hold(lambda source, target, message: isinstance(message, Prefill) and target == "prefill0")
    workers = {worker.hello.address: worker for worker in cluster.gateway.workers}
    workers["prefill1"].count(10_000)  # so that prefill0 is tried first
    client = cluster.ask(PROMPT)
    await asyncio.sleep(1)
    assert not client.seen
    cluster.network.snap("gateway", "prefill0")
    assert await cluster.finish(5) == []
    assert len(client.seen) == 6
