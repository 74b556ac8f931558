"""A request is blamed for a worker's death only if that worker computed it and died alone, not together with others."""

import asyncio
from dataclasses import replace
from random import Random

from engine.step.plan import Plan
from gateway.attaching.service import Gateway
from gateway.routing.router import Local
from mesh.errors import WorkersDied
from mesh.messages.jobs import Sampling, Tier
from mesh.messages.message import Message
from mesh.messages.reports import Begun
from mesh.rules import RULES
from tests.sim.cluster import Cluster, SimClient
from tests.sim.loop import virtual

PROMPT = tuple(range(10))
LONG = Sampling(max_tokens=60)


class StoppableGateway(Cluster):
    """A cluster whose gateway can be stopped as a process is: meanwhile nothing reaches it and it judges no worker."""

    def _gateway(self, random: Random) -> Gateway:
        own = self.options
        self.options = replace(own, rules=replace(own.rules, lease_seconds=1000.0))
        try:
            return super()._gateway(random)
        finally:
            self.options = own

    async def stop_gateway(self, seconds: float) -> None:
        """Stop the gateway until its workers have given up their sessions; it hears of that when it goes on."""
        release = self.network.hold(lambda source, target, _: "gateway" in (source, target))
        await asyncio.sleep(seconds)
        release()


@virtual
async def test_a_gateway_that_was_stopped_for_8_seconds_ends_no_request() -> None:
    cluster = StoppableGateway(1, pages=512)
    await cluster.start(4, 4)
    clients = [cluster.ask(tuple(range(i, i + 8)), Sampling(max_tokens=16)) for i in range(160)]
    assert await cluster.until(lambda: sum(len(client.seen) > 3 for client in clients) > 60)
    assert any(len(client.seen) == 0 for client in clients), "some wait for prefill still"
    await cluster.stop_gateway(8.0)
    assert await cluster.finish() == []
    assert [client.error for client in clients] == [None] * 160


@virtual
async def test_a_gateway_that_is_stopped_again_and_again_ends_no_request() -> None:
    cluster = StoppableGateway(2)
    await cluster.start(2, 2)

    async def slowly(plan: Plan) -> None:
        await asyncio.sleep(0.3)

    for process in cluster.processes.values():
        process.runner.before = slowly
    client = cluster.ask(PROMPT, Sampling(max_tokens=120))
    for _ in range(5):
        seen = len(client.seen)
        assert await cluster.until(lambda n=seen: len(client.seen) > n + 2, 20)
        assert not client.ended
        await cluster.stop_gateway(8.0)
        assert await cluster.until(lambda: len(cluster.gateway.workers) == 4, 10)
    assert client.task is not None
    await asyncio.wait([client.task], timeout=100)
    assert await cluster.finish() == []


@virtual
async def test_requests_whose_workers_all_die_at_once_go_on_when_they_are_back() -> None:
    cluster = await Cluster(3, pages=512).start(2, 2)
    clients = [cluster.ask(tuple(range(i, i + 9)), LONG) for i in range(16)]
    names = list(cluster.processes)
    for round_ in range(1, 4):
        assert await cluster.until(lambda n=round_: sum(len(client.seen) > 3 * n for client in clients) > 8)
        await asyncio.gather(*(cluster.kill(name) for name in names))
        await asyncio.sleep(1.5)
        for name in names:
            await cluster.add(cluster.processes[name].tier, name)
    assert await cluster.finish() == []
    assert [client.error for client in clients] == [None] * 16


@virtual
async def test_drains_do_not_count_however_many_end_under_one_request() -> None:
    cluster = await Cluster(4).start(1, 2)
    client = cluster.ask(PROMPT, LONG)
    for drain in range(1, 5):
        assert await cluster.until(lambda n=drain: len(client.seen) >= 4 * n)
        busy = next(p for p in cluster.processes.values() if p.alive and p.tier is Tier.DECODE and p.worker.busy)
        busy.worker.attachments.drain()
        await asyncio.sleep(0.005)
        assert not client.ended
        await cluster.restart(busy.name)
        assert await cluster.until(lambda: len(cluster.gateway.workers) == 3, 5)
    assert await cluster.finish() == []


@virtual
async def test_prompts_behind_the_one_that_kills_do_not_end_with_it() -> None:
    """Requests live that wait at the worker that dies three times: no step has computed them."""
    cluster = await Cluster(5, local=Local.NEVER, chunk_tokens=8, pages=512).start(1, 1)
    bad = poison(cluster, restart_seconds=0.5)
    killer = ask_for_death(cluster)
    await asyncio.sleep(0.001)
    others = [cluster.ask(tuple(range(i, i + 40))) for i in range(20)]
    assert await cluster.finish() == []
    assert isinstance(killer.error, WorkersDied) and len(bad) == RULES.deaths
    assert sum(client.error is None for client in others) >= 18, "but for those in the same steps"


# ---- negative controls: what does count


DEADLY = 5000  # a token that ends the process that computes it; no step yields it


def ask_for_death(cluster: Cluster, max_tokens: int = 6) -> SimClient:
    client = cluster.ask((1, 2, DEADLY, 3), Sampling(max_tokens=max_tokens))
    client.may_fail = True
    return client


def poison(cluster: Cluster, *, restart_seconds: float) -> list[str]:
    """From now on a process that computes the deadly token dies, and starts again; returns the names of the dead."""
    dead = list[str]()

    def arm(name: str) -> None:
        async def before(plan: Plan) -> None:
            if any(DEADLY in piece.tokens for piece in plan.pieces):
                dead.append(name)
                tasks.append(asyncio.ensure_future(die(name)))
                await asyncio.sleep(1000)

        cluster.processes[name].runner.before = before

    async def die(name: str) -> None:
        await cluster.kill(name)
        await asyncio.sleep(restart_seconds)
        await cluster.add(cluster.processes[name].tier, name)
        arm(name)

    tasks = list[asyncio.Future[None]]()
    for name in list(cluster.processes):
        arm(name)
    return dead


@virtual
async def test_a_request_that_kills_each_worker_that_computes_it_ends_after_the_third() -> None:
    cluster = await Cluster(6).start(2, 2)
    dead = poison(cluster, restart_seconds=0.5)
    bystander = cluster.ask(PROMPT, LONG)
    client = ask_for_death(cluster)
    assert await cluster.until(lambda: client.ended, 60)
    assert isinstance(client.error, WorkersDied) and len(dead) == RULES.deaths
    assert await cluster.finish() == []
    assert bystander.error is None


@virtual
async def test_it_ends_though_the_notice_of_its_first_step_dies_with_the_worker() -> None:
    cluster = await Cluster(7).start(2, 2)

    def lost(source: str, target: str, message: Message) -> bool:
        return isinstance(message, Begun)

    cluster.network.hold(lost)
    dead = poison(cluster, restart_seconds=0.5)
    client = ask_for_death(cluster)
    assert await cluster.until(lambda: client.ended, 60)
    assert isinstance(client.error, WorkersDied) and len(dead) <= RULES.deaths + 1


@virtual
async def test_several_that_kill_at_the_same_time_end_too() -> None:
    """Each request sees several workers die at the same time, so these deaths are not blamed on it, up to a limit."""
    cluster = await Cluster(8, pages=256).start(2, 2)
    dead = poison(cluster, restart_seconds=0.2)
    clients = [ask_for_death(cluster) for _ in range(8)]
    assert await cluster.until(lambda: all(client.ended for client in clients), 200)
    assert all(isinstance(client.error, WorkersDied) for client in clients), [repr(c.error) for c in clients]
    assert len(dead) <= 8 * RULES.deaths_in_all


@virtual
async def test_a_worker_that_has_computed_much_of_a_request_does_not_count() -> None:
    cluster = await Cluster(9).start(1, 1)
    client = cluster.ask(PROMPT, Sampling(max_tokens=160))
    for death in range(1, 6):
        seen = len(client.seen)
        assert await cluster.until(lambda n=seen: len(client.seen) > n + RULES.proven_tokens + 4), death
        await cluster.restart("decode0")
    assert await cluster.finish() == []
