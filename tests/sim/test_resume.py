"""What a request leaves behind when its attempt is raised: nothing at its workers, and no gap in its text."""

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import pytest

from gateway.routing.router import Local
from mesh.errors import Internal
from mesh.messages.job_check import MOST_PRIORITY
from mesh.messages.jobs import Sampling
from mesh.messages.kv_messages import Landing
from mesh.messages.message import Message
from mesh.messages.orders import Open, Prefill
from mesh.messages.reports import Hello
from tests.sim.cluster import Cluster
from tests.sim.loop import run_virtual
from tests.sim.seeds.removals import removed
from tests.sim.seeds.run import run_story
from tests.sim.seeds.story import Demand, SimFault, SimWorld, Story

LONG = Sampling(max_tokens=30)
TWO_CLASSES = SimWorld(
    seed=1,
    prefills=2,
    decodes=2,
    gateways=1,
    classes=("class-a", "class-b"),
    local=Local.ALWAYS,
    step_seconds=0.3,
)


def odd(kind: type[Open] | type[Prefill]) -> Callable[[str, Message], Message]:
    """Later attempts come to workers with a priority that no gateway sends."""

    def rewrite(source: str, message: Message) -> Message:
        if isinstance(message, kind) and message.job.ticket.attempt > 1:
            return replace(message, job=replace(message.job, priority=MOST_PRIORITY + 1))
        return message

    return rewrite


@pytest.mark.parametrize("guarded", [True, False])
@pytest.mark.parametrize("tier", ["prefill", "decode"])
def test_cancel_of_a_refused_attempt_ends_the_one_before_too(tier: str, guarded: bool) -> None:
    """The worker that the request keeps refuses its second attempt. Both workers then get Cancel of that one."""

    async def main() -> int:
        cluster = await Cluster(1, local=Local.NEVER).start(*((1, 2) if tier == "prefill" else (2, 1)))
        cluster.network.rewrite = odd(Prefill if tier == "prefill" else Open)
        cluster.network.hold(lambda source, target, message: isinstance(message, Landing))
        client = cluster.ask(tuple(range(40)), LONG)
        client.may_fail = True
        other = "decode" if tier == "prefill" else "prefill"
        has = [p for p in cluster.processes.values() if p.name.startswith(other)]
        assert await cluster.until(lambda: any(process.worker.busy for process in has))
        await cluster.kill(next(process.name for process in has if process.worker.busy))
        assert await cluster.until(lambda: client.ended)
        assert isinstance(client.error, Internal) and "priority" in str(client.error)
        await asyncio.sleep(0.1)
        return sum(process.worker.busy for process in cluster.processes.values() if process.name.startswith(tier))

    with nullcontext() if guarded else removed("Cancel of lower attempts"):
        assert run_virtual(main()) == (0 if guarded else 1)


@pytest.mark.parametrize("guarded", [True, False])
def test_of_two_processes_with_one_incarnation_the_gateway_takes_the_first(guarded: bool) -> None:
    """Both have registered before either says Hello, so only Hello can tell that the incarnation is in use."""

    async def main() -> str:
        cluster = await Cluster(1).start(1, 1)
        await cluster.kill("decode0")
        cluster.random.getrandbits = lambda bits: 7  # type: ignore[method-assign]
        release = cluster.network.hold(lambda source, target, message: isinstance(message, Hello))
        for name in ("decode1", "decode2"):
            await cluster.add(cluster.processes["decode0"].tier, name)
            await asyncio.sleep(1)
        assert cluster.gateway.workers.get(7) is None
        release()
        await asyncio.sleep(1)
        first = cluster.gateway.workers.get(7)
        assert first is not None
        return first.name

    with nullcontext() if guarded else removed("incarnation lives"):
        assert run_virtual(main()) == ("decode1" if guarded else "decode2")


@pytest.mark.parametrize("name", ["", "resume forgets", "resume skips", "resume samples again"])
def test_an_answer_goes_on_behind_the_last_token_that_its_client_has(name: str) -> None:
    """Its worker dies in mid-answer, and one of another class goes on."""
    demand = Demand(0.0, tuple(range(10)), Sampling(max_tokens=40), 0, allow_class_change=True)
    faults = tuple(SimFault(at, "kill", target, seconds=20.0) for at, target in ((6.0, "decode0"), (12.0, "decode1")))
    with removed(name) if name else nullcontext():
        outcome = run_story(Story(TWO_CLASSES, (demand,), faults, 60.0))
    assert bool(outcome.violations) is bool(name), outcome.violations
    if not name:
        assert outcome.reached["a request continues in another numerics class"]
