"""Workers whose sessions live while their compute stands still: requests leave them; slow steps harm nobody."""

import asyncio
from random import Random

import pytest

from engine.step.plan import Plan
from gateway.routing.router import Local
from mesh.errors import WorkersDied
from mesh.messages.jobs import Sampling
from mesh.messages.reports import LongStep
from mesh.rules import RULES
from mesh.sessions.step_times import LEAST_LIMIT_SECONDS
from prefill_svc.prompts import Prompt
from tests.sim.clients import SimClient
from tests.sim.cluster import Cluster
from tests.sim.loop import virtual

LONG = Sampling(max_tokens=40)


async def end(clients: list[SimClient], seconds: float) -> None:
    """Let time pass until all have ended, without a look at every moment."""
    await asyncio.wait([client.task for client in clients if client.task is not None], timeout=seconds)
    assert all(client.ended for client in clients)


def hang(cluster: Cluster, name: str) -> None:
    """From its next step on the worker's compute never returns; its event loop goes on."""

    async def forever(plan: Plan) -> None:
        await asyncio.sleep(1e9)

    cluster.processes[name].runner.before = forever


def slow(cluster: Cluster, name: str, seconds: float) -> None:
    """From now on each step of the worker takes so much longer."""

    async def slowly(plan: Plan) -> None:
        await asyncio.sleep(seconds)

    cluster.processes[name].runner.before = slowly


@pytest.mark.parametrize("local", [Local.AUTO, Local.ALWAYS])
@pytest.mark.parametrize("name", ["prefill0", "decode0"])
@virtual
async def test_streams_of_a_worker_whose_compute_hangs_go_on_elsewhere(name: str, local: Local) -> None:
    cluster = await Cluster(1, pages=512, local=local).start(2, 2)
    random = Random(4)
    prompts = [tuple(random.randrange(50) for _ in range(30)) for _ in range(24)]
    clients = [cluster.ask(prompt, LONG) for prompt in prompts]
    assert await cluster.until(lambda: sum(len(client.seen) > 2 for client in clients) > 6)
    hang(cluster, name)
    began = asyncio.get_running_loop().time()
    clients += [cluster.ask(prompt[1:], LONG) for prompt in prompts]
    await end(clients, 60)
    assert [client.error for client in clients] == [None] * 48
    assert asyncio.get_running_loop().time() - began < RULES.hung_seconds + LEAST_LIMIT_SECONDS
    if local is Local.AUTO or name == "decode0":
        hung = [worker for worker in cluster.gateway.workers if worker.hung]
        assert [worker.name for worker in hung] == [name], "it gets no new requests"
    late = cluster.ask((1, 2, 3))
    assert await cluster.until(lambda: late.ended, 1)
    await cluster.restart(name)
    assert await cluster.finish() == []
    assert await cluster.until(lambda: not any(worker.hung for worker in cluster.gateway.workers), 1)


@pytest.mark.parametrize("name", ["prefill0", "decode0"])
@virtual
async def test_a_worker_that_does_not_even_report_its_long_step_is_left_too(name: str) -> None:
    cluster = await Cluster(2).start(2, 2)
    client = cluster.ask(tuple(range(30)), LONG)
    both = [cluster.ask(tuple(range(i, i + 30)), LONG) for i in range(12)]
    for task in cluster.processes[name].tasks[2:]:
        task.cancel()  # its reports
    assert await cluster.until(lambda: len(client.seen) > 2)
    hang(cluster, name)
    both += [cluster.ask(tuple(range(i, i + 31)), LONG) for i in range(12)]
    await end(both, RULES.silent_seconds + 10)
    await cluster.kill(name)
    assert await cluster.finish() == []


@virtual
async def test_a_step_that_is_slow_and_ends_costs_no_request_its_worker() -> None:
    """Negative control: many times the median, and other workers would be free."""
    cluster = await Cluster(3).start(2, 2)
    clients = [cluster.ask(tuple(range(i, i + 20)), LONG) for i in range(8)]
    assert await cluster.until(lambda: all(len(client.seen) > 4 for client in clients))

    async def slowly(plan: Plan) -> None:
        for process in cluster.processes.values():
            process.runner.before = None
        await asyncio.sleep(RULES.hung_seconds - 2.0)  # a thousand times as long as the others

    for process in cluster.processes.values():
        process.runner.before = slowly
    assert await cluster.finish() == []
    assert [client.handle.timings.attempts for client in clients] == [1] * 8


@virtual
async def test_on_a_slow_machine_every_step_may_take_long() -> None:
    """A landing fails while decode does not know how long steps take; then every stage has time enough."""
    cluster = await Cluster(4, local=Local.NEVER).start(2, 2)

    async def slowly(plan: Plan) -> None:
        await asyncio.sleep(9.0 + plan.rows / 2)

    for process in cluster.processes.values():
        process.runner.before = slowly
    client = cluster.ask(tuple(range(40)), Sampling(max_tokens=5))
    hung = set[str]()
    while not client.ended and asyncio.get_running_loop().time() < 600:
        hung |= {worker.name for worker in cluster.gateway.workers if worker.hung}
        await asyncio.sleep(0.5)
    assert await cluster.finish() == [] and not hung
    assert client.handle.timings.attempts <= 4


@virtual
async def test_a_worker_that_goes_on_is_used_again() -> None:
    cluster = await Cluster(5).start(1, 1)
    client = cluster.ask(tuple(range(10)), LONG)
    assert await cluster.until(lambda: len(client.seen) > 4)
    stop = asyncio.Event()

    async def until_stop(plan: Plan) -> None:
        await stop.wait()

    cluster.processes["decode0"].runner.before = until_stop
    assert await cluster.until(lambda: any(worker.hung for worker in cluster.gateway.workers), 20)
    await asyncio.sleep(3)
    assert not client.ended, "it waits: there is no other worker"
    stop.set()
    assert await cluster.finish() == []
    assert client.error is None


@virtual
async def test_a_prompt_that_its_worker_has_forgotten_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker computes the prompt behind it and reports that: it is not hung."""
    cluster = await Cluster(6).start(1, 1)
    prompts, forgotten = cluster.prefill().prompts, list[Prompt]()
    add = prompts.add
    monkeypatch.setattr(prompts, "add", lambda prompt: add(prompt) if forgotten else forgotten.append(prompt))
    clients = [cluster.ask(tuple(range(first, first + 10))) for first in (0, 20)]
    await end(clients, RULES.silent_seconds + 10)
    assert forgotten and [client.error for client in clients] == [None, None]
    assert await cluster.finish() == []


@virtual
async def test_a_prompt_that_waits_for_room_hangs_nobody() -> None:
    """Negative control: prefill has reported nothing for long, because decode has no room."""
    cluster = await Cluster(7, pages=24, local=Local.NEVER, max_batch=1).start(1, 1)

    async def slowly(plan: Plan) -> None:
        await asyncio.sleep(2.0)

    cluster.processes["decode0"].runner.before = slowly
    clients = [cluster.ask(tuple(range(i, i + 10)), Sampling(max_tokens=30)) for i in range(3)]
    errors = list[str]()
    while not all(client.ended for client in clients):
        errors += [worker.name for worker in cluster.gateway.workers if worker.hung]
        await asyncio.sleep(0.5)
    assert await cluster.finish() == [] and errors == []


@virtual
async def test_a_prompt_that_has_waited_for_room_has_time_for_its_first_step() -> None:
    """Its landing comes after `silent_seconds` of which prefill has nothing to report."""
    cluster = await Cluster(12, local=Local.NEVER, max_batch=1).start(1, 1)
    slow(cluster, "decode0", 0.5)
    running = cluster.ask(tuple(range(10)), Sampling(max_tokens=100))
    assert await cluster.until(lambda: len(running.seen) > 1)
    await cluster.restart("prefill0")  # the end of that request is nothing that it could report
    slow(cluster, "prefill0", 0.9)
    await asyncio.sleep(5.1 - asyncio.get_running_loop().time())  # a moment behind a look of the gateway
    waiting = cluster.ask(tuple(range(20, 30)))
    await asyncio.sleep(RULES.silent_seconds + 0.5)
    running.handle.cancel()
    assert await cluster.finish() == [] and waiting.handle.timings.attempts == 1


@virtual
async def test_a_decode_worker_that_waits_for_the_last_pages_of_a_long_prompt_is_not_hung() -> None:
    """Prefill's first token is there, and decode has had nothing to report while prefill computed the prompt."""
    cluster = await Cluster(13, pages=256, local=Local.NEVER).start(1, 1)
    cluster.fabric.delay_seconds = 0.8, 0.9
    slow(cluster, "prefill0", 0.9)
    client = cluster.ask(tuple(range(640)))
    hung = set[str]()
    while not client.ended:
        hung |= {worker.name for worker in cluster.gateway.workers if worker.hung}
        await asyncio.sleep(0.05)
    assert await cluster.finish() == [] and not hung
    timings = client.handle.timings
    assert timings.first_token_seconds > 2 * RULES.silent_seconds and timings.attempts == 1


@virtual
async def test_a_request_that_hangs_every_worker_that_computes_it_ends() -> None:
    cluster = await Cluster(8).start(3, 3)
    hanging = 5000  # no step yields it

    async def before(plan: Plan) -> None:
        if any(hanging in piece.tokens for piece in plan.pieces):
            await asyncio.sleep(1e9)

    for process in cluster.processes.values():
        process.runner.before = before
    client = cluster.ask((1, 2, hanging, 3))
    client.may_fail = True
    await end([client], 200)
    assert isinstance(client.error, WorkersDied)
    assert sum(worker.hung for worker in cluster.gateway.workers) == RULES.deaths
    for process in list(cluster.processes.values()):
        await cluster.kill(process.name)


@virtual
async def test_long_steps_are_reported_once_per_heartbeat_and_short_ones_never() -> None:
    cluster = await Cluster(9).start(1, 1)
    cluster.ask(tuple(range(20)), LONG)
    assert await cluster.finish() == []
    assert not any(what == LongStep.__name__ for _, _, _, what in cluster.network.log)

    async def slowly(plan: Plan) -> None:
        cluster.processes["decode0"].runner.before = None
        await asyncio.sleep(5.2)

    cluster.processes["decode0"].runner.before = slowly
    cluster.ask(tuple(range(21)), LONG)
    assert await cluster.finish() == []
    reports = [source for _, source, _, what in cluster.network.log if what == LongStep.__name__]
    assert reports == ["decode0"] * len(reports) and 4 <= len(reports) <= 5


@virtual
async def test_a_gateway_that_was_stopped_itself_hangs_nobody() -> None:
    cluster = await Cluster(10).start(1, 1)
    client = cluster.ask(tuple(range(10)), LONG)
    assert await cluster.until(lambda: len(client.seen) > 4)
    asyncio.get_running_loop().stand_still(45.0)  # type: ignore[attr-defined]
    await asyncio.sleep(0.001)
    assert not any(worker.hung for worker in cluster.gateway.workers)
    assert await cluster.finish() == []
    assert client.handle.timings.attempts == 1


@virtual
async def test_only_workers_for_whose_compute_a_request_waits_are_hung() -> None:
    cluster = await Cluster(11).start(2, 2)
    for name in ("prefill0", "prefill1", "decode0", "decode1"):
        hang(cluster, name)
    await asyncio.sleep(100)
    assert not any(worker.hung for worker in cluster.gateway.workers), "an idle worker has nothing to report"
