"""Workers, gateways and clients that die, stall or go away: what the client sees, and when."""

import asyncio
from random import Random

import pytest

from decode_svc.worker import DecodeWorker
from gateway.router import Local
from mesh.errors import Cancelled, DeadlineExceeded, Unavailable, WorkersDied
from mesh.messages import Commit, Heartbeat, Hello, Lost, Message, Prefill, Reason, Register, Sampling, Tier
from tests.sim.cluster import Cluster
from tests.sim.loop import run_virtual

PROMPT = tuple(range(10))  # three pages


@pytest.mark.parametrize("seed", range(20))
def test_a_first_token_that_prefill_left_behind_is_not_said_twice(seed: int) -> None:
    """Prefill dies with every span landed and Commit on its way; the gateway's Resume meets decode's own last row."""

    async def main() -> None:
        cluster = Cluster(seed)
        await cluster.start(1, 1)
        cluster.network.hold(lambda source, target, message: isinstance(message, Commit))
        client = cluster.ask(PROMPT)
        await cluster.until(lambda: len(client.seen) == 1)
        await asyncio.sleep(0.05)
        await cluster.kill("prefill0")
        assert await cluster.finish() == []
        assert client.error is None

    run_virtual(main())


def test_a_request_that_waits_for_a_page_goes_on_when_the_proof_comes() -> None:
    """Nothing else happens meanwhile: the Quiet alone must wake decode."""

    async def main() -> None:
        cluster = Cluster(1, pages=6, may_kill=False)
        await cluster.start(1, 1)
        other = cluster.ask(tuple(range(30, 40)))
        ticket = cluster.ticket(other).pack()
        writes = cluster.fabric.hold(lambda write: write.ticket == ticket)
        await cluster.until(lambda: len(cluster.fabric.waiting) == 6)
        long = cluster.ask(PROMPT, Sampling(max_tokens=14))  # six pages in the end
        await asyncio.sleep(0.1)
        other.handle.cancel()
        await asyncio.sleep(0.3)
        assert cluster.decode().pages.counts().quarantined == 3 and 1 < len(long.seen) < 14
        writes()
        await asyncio.sleep(0.1)
        assert len(long.seen) == 14
        assert await cluster.finish() == []

    run_virtual(main())


@pytest.mark.parametrize("one_sided", [True, False])
def test_decode_dies_and_another_decode_worker_goes_on_with_the_same_tokens(one_sided: bool) -> None:
    async def main() -> None:
        cluster = Cluster(1, one_sided=one_sided)
        await cluster.start(1, 2)
        client = cluster.ask(PROMPT, Sampling(max_tokens=20))
        assert await cluster.until(lambda: len(client.seen) == 7)
        serving = next(name for name in ("decode0", "decode1") if cluster.processes[name].worker.requests)
        await cluster.kill(serving)
        assert await cluster.finish() == []
        assert client.handle.timings.attempts == 2 and len(client.seen) == 20

    run_virtual(main())


def test_a_request_whose_workers_died_three_times_ends_with_an_error_of_its_own() -> None:
    async def main() -> None:
        cluster = Cluster(1)
        await cluster.start(1, 1)
        client = cluster.ask(PROMPT, Sampling(max_tokens=40))
        client.may_fail = True
        for death in range(1, 4):
            assert not client.ended
            assert await cluster.until(lambda d=death: bool(cluster.decode().requests) and len(client.seen) > 2 * d)
            await cluster.restart("decode0")
        assert await cluster.until(lambda: client.ended, 5)
        assert isinstance(client.error, WorkersDied) and "3 workers" in str(client.error)
        assert await cluster.finish() == []

    run_virtual(main())


def test_two_deaths_are_survived() -> None:
    async def main() -> None:
        cluster = Cluster(1)
        await cluster.start(1, 1)
        client = cluster.ask(PROMPT, Sampling(max_tokens=40))
        for death in range(1, 3):
            assert await cluster.until(lambda d=death: bool(cluster.decode().requests) and len(client.seen) > 2 * d)
            await cluster.restart("decode0")
        assert await cluster.finish() == []
        assert client.handle.timings.attempts >= 3

    run_virtual(main())


def test_a_deadline_ends_the_request_on_time_and_frees_everything() -> None:
    async def main() -> None:
        cluster = Cluster(1)
        await cluster.start(1, 1)
        loop = asyncio.get_running_loop()
        client = cluster.ask(PROMPT, Sampling(max_tokens=60), 0.05)
        client.may_fail = True
        began = loop.time()
        assert await cluster.until(lambda: client.ended)
        assert isinstance(client.error, DeadlineExceeded) and "0.050 s" in str(client.error)
        assert 0.05 <= loop.time() - began < 0.06 and 0 < len(client.seen) < 60
        assert await cluster.finish() == []

    run_virtual(main())


def test_a_request_waits_for_a_worker_as_long_as_the_gateway_has_patience() -> None:
    async def main() -> None:
        cluster = Cluster(1, patience_seconds=3.0)
        await cluster.start(0, 0)
        impatient = cluster.ask(PROMPT)
        impatient.may_fail = True
        await asyncio.sleep(2)
        served = cluster.ask(PROMPT)
        assert await cluster.until(lambda: impatient.ended, 1.1)
        assert isinstance(impatient.error, Unavailable) and not impatient.seen
        await cluster.add(Tier.DECODE, "decode0")
        assert await cluster.finish() == []
        assert len(served.seen) == 6

    run_virtual(main())


def test_patience_counts_only_while_no_worker_has_the_request() -> None:
    async def main() -> None:
        cluster = Cluster(1, patience_seconds=0.05)
        await cluster.start(1, 1)
        cluster.ask(PROMPT, Sampling(max_tokens=60))
        assert await cluster.finish() == []

    run_virtual(main())


def test_after_a_gateway_restart_the_client_goes_on_by_sending_what_it_has() -> None:
    async def main() -> None:
        cluster = Cluster(1)
        await cluster.start(1, 1)
        sampling = Sampling(max_tokens=30, temperature=1.0, seed=7)
        client = cluster.ask(PROMPT, sampling)
        assert await cluster.until(lambda: len(client.seen) == 9)
        await cluster.restart_gateway(Random(99))
        assert client.task is not None
        client.task.cancel()
        cluster.clients.remove(client)
        assert await cluster.until(lambda: len(cluster.gateway.workers) == 2, 2)
        assert not cluster.decode().requests and not cluster.prefill().prompts, "its workers dropped what it had asked"
        again = cluster.ask(PROMPT, sampling, emitted=tuple(client.seen))
        assert await cluster.finish() == []
        assert again.positions == list(range(9, 30))

    run_virtual(main())


@pytest.mark.parametrize("decodes", [1, 2])
@pytest.mark.parametrize("prefills", [1, 2])
def test_when_prefill_cannot_reach_decode_the_request_goes_elsewhere(prefills: int, decodes: int) -> None:
    async def main() -> None:
        cluster = Cluster(1)
        cluster.refuse = lambda decode, prefill: "not with me" if decode == "decode0" else ""
        await cluster.start(prefills, decodes)
        if decodes == 2:
            workers = {worker.hello.address: worker for worker in cluster.gateway.workers}
            workers["decode1"].unreported_requests += 1000  # so that decode0 is tried first
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

    run_virtual(main())


def test_a_session_that_ends_once_makes_no_decode_worker_prefill() -> None:
    async def main() -> None:
        cluster = Cluster(1)
        await cluster.start(1, 1)
        release = cluster.fabric.hold(lambda write: True)
        cluster.ask(PROMPT)
        assert await cluster.until(lambda: len(cluster.fabric.waiting) == 6)
        cluster.network.snap("prefill0", "decode0")
        await asyncio.sleep(0.01)
        release()
        assert await cluster.finish(5) == []
        assert all(len(piece.tokens) == 1 for plan in cluster.decode().plans or [] for piece in plan.pieces)

    run_virtual(main())


def test_when_decode_may_not_prefill_the_same_pair_is_tried_until_it_works() -> None:
    async def main() -> None:
        cluster = Cluster(1, local=Local.NEVER)
        refusing = True
        cluster.refuse = lambda decode, prefill: "not now" if refusing else ""
        await cluster.start(1, 1)
        client = cluster.ask(PROMPT)
        await asyncio.sleep(25)
        assert not client.ended and not client.seen
        refusing = False
        assert await cluster.finish(10) == []

    run_virtual(main())


def test_a_prompt_that_comes_when_its_link_is_about_to_be_forgotten_is_not_lost() -> None:
    """No session with decode begins for almost a minute; then a prompt comes, and the gateway cannot know that."""

    async def main() -> None:
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

    run_virtual(main())


@pytest.mark.parametrize("name", ["prefill0", "decode0"])
def test_a_worker_that_falls_silent_is_given_up_after_its_lease_and_not_before(name: str) -> None:
    async def main() -> None:
        cluster = Cluster(1)
        await cluster.start(2, 2)
        loop = asyncio.get_running_loop()
        cluster.freeze(name)
        began = loop.time()
        assert await cluster.until(lambda: len(cluster.gateway.workers) == 3, 20)
        assert 5.0 - 1.0 < loop.time() - began < 5.0 + 1.5
        cluster.thaw(name)
        assert await cluster.until(lambda: len(cluster.gateway.workers) == 4, 5), "it registers again"
        cluster.ask(PROMPT)
        assert await cluster.finish() == []

    run_virtual(main())


def test_an_idle_mesh_keeps_its_sessions_by_heartbeats_alone() -> None:
    async def main() -> None:
        cluster = Cluster(1)
        await cluster.start(1, 1)
        cluster.ask(PROMPT)
        assert await cluster.finish() == []
        await asyncio.sleep(1)
        began = len(cluster.network.log)
        await asyncio.sleep(60)
        quiet = {what for _, _, _, what in cluster.network.log[began:]}
        assert quiet == {"Heartbeat"} and len(cluster.gateway.workers) == 2
        cluster.network.hold(lambda source, target, message: isinstance(message, Heartbeat) and target == "gateway")
        assert await cluster.until(lambda: len(cluster.gateway.workers) < 2, 7), "without them it would not"

    run_virtual(main())


def test_a_worker_that_registers_twice_is_dialed_once() -> None:
    async def main() -> None:
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

    run_virtual(main())


def test_a_worker_that_could_not_be_dialed_is_dialed_again_when_it_registers_again() -> None:
    async def main() -> None:
        cluster = Cluster(1)
        await cluster.gateway.listen("gateway")
        process = await cluster.add(Tier.DECODE, "decode0")
        cluster.network.unlisten("decode0")
        await asyncio.sleep(2.5)
        assert len(cluster.gateway.workers) == 0
        assert isinstance(process.worker, DecodeWorker)
        await process.worker.listen("decode0")
        assert await cluster.until(lambda: len(cluster.gateway.workers) == 1, 2)

    run_virtual(main())


@pytest.mark.parametrize("one_sided", [True, False])
def test_a_cancel_at_any_moment_leaves_no_page_behind(one_sided: bool) -> None:
    async def main() -> None:
        random = Random(3)
        cluster = Cluster(3, one_sided=one_sided, pages=24, local=Local.NEVER)
        await cluster.start(1, 1)
        for number in range(60):
            client = cluster.ask(tuple(random.randrange(50) for _ in range(20)), Sampling(max_tokens=8))
            asyncio.get_running_loop().call_later(number / 60 * 0.06, client.handle.cancel)
            await asyncio.sleep(random.expovariate(1 / 0.02))
        assert await cluster.finish() == []
        cancelled = [client for client in cluster.clients if client.error]
        assert all(isinstance(client.error, Cancelled) for client in cancelled)
        assert any(not client.seen for client in cancelled) and any(len(client.seen) > 2 for client in cancelled)

    run_virtual(main())


def test_a_prefill_message_that_never_arrives_is_made_up_for_by_the_end_of_its_session() -> None:
    async def main() -> None:
        cluster = Cluster(1)
        await cluster.start(2, 1)
        cluster.network.hold(lambda source, target, message: isinstance(message, Prefill) and target == "prefill0")
        workers = {worker.hello.address: worker for worker in cluster.gateway.workers}
        workers["prefill1"].unreported_tokens += 10_000  # so that prefill0 is tried first
        client = cluster.ask(PROMPT)
        await asyncio.sleep(1)
        assert not client.seen
        cluster.network.snap("gateway", "prefill0")
        assert await cluster.finish(5) == []
        assert len(client.seen) == 6

    run_virtual(main())
