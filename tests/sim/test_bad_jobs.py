"""A job that no worker can compute ends alone: the workers live, and the requests beside it get their own tokens."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import pytest

from engine.pool.isolation import Isolation
from engine.step.plan import Plan, Result
from gateway.routing.router import Local
from mesh.errors import Internal
from mesh.messages.job_check import JobLimits
from mesh.messages.jobs import (
    Adjustments,
    Job,
    Pooling,
    Reason,
    ReasoningBudget,
    Sampling,
    Ticket,
    Tier,
    TokenBias,
    TokenSequence,
)
from mesh.messages.orders import Examination, Examine, Open, Prefill
from mesh.messages.reports import Lost
from mesh.sessions.session import Session
from tests.sim.cluster import Cluster, SimClient
from tests.sim.loop import virtual

POISON = 998  # a token that makes every step fail which reads it, and that no answer contains


def poisonous(plan: Plan) -> None:
    if any(POISON in piece.tokens for piece in plan.pieces):
        raise FloatingPointError(f"step {plan.step} meets {POISON}")


def innocents(cluster: Cluster, count: int) -> list[SimClient]:
    return [cluster.ask(tuple(range(key, key + 9 + key)), Sampling(max_tokens=24)) for key in range(count)]


async def with_poison(cluster: Cluster, bad: int) -> list[SimClient]:
    """While requests run, others come whose prompts make steps fail: their poison stands at different places."""
    good = innocents(cluster, 7)
    await asyncio.sleep(0.01)
    prompts = [(*range(4 * key), POISON, *range(6)) for key in range(bad)]
    poisoned = [cluster.ask(prompt, Sampling(max_tokens=24)) for prompt in prompts]
    for client in poisoned:
        client.may_fail = True
    assert await cluster.finish() == []
    assert all(client.error is None and len(client.seen) == 24 for client in good)
    return poisoned


@pytest.mark.parametrize("local", [Local.NEVER, Local.ALWAYS])
@pytest.mark.parametrize("one_sided", [True, False])
@pytest.mark.parametrize("bad", [1, 5])
@virtual
async def test_a_prompt_that_makes_steps_fail_ends_alone(local: Local, one_sided: bool, bad: int) -> None:
    cluster = await Cluster(5, local=local, one_sided=one_sided, on_plan=poisonous).start(1, 1)
    before = {name: process.incarnation for name, process in cluster.processes.items()}
    for client in await with_poison(cluster, bad):
        assert isinstance(client.error, Internal) and client.spec.request_id in str(client.error)
        assert "FloatingPointError" in str(client.error) and client.seen == []
    assert {name: process.incarnation for name, process in cluster.processes.items()} == before
    tried = [event for event in cluster.network.log if event[3] in ("Prefill", "Open")]
    assert len(tried) == (7 + bad) * (1 if local is Local.ALWAYS else 2), "no request had a second attempt"
    failed = [process.worker.counts()["failed"] for process in cluster.processes.values()]
    assert sum(failed) == bad


@pytest.mark.parametrize("ahead", [True, False])
@virtual
async def test_a_token_that_makes_decode_steps_fail_ends_its_request_alone(ahead: bool) -> None:
    """The poison is sampled in the middle of an answer; with `ahead` the next step is launched already when the step
    before it fails."""
    probe = await Cluster(5, local=Local.ALWAYS).start(0, 1)
    clients = innocents(probe, 7)
    assert await probe.finish() == []
    poison = clients[3].seen[10]
    assert sum(poison in (*client.spec.prompt, *client.seen) for client in clients) == 1

    def on_plan(plan: Plan) -> None:
        if any(poison in piece.tokens for piece in plan.pieces):
            raise FloatingPointError

    cluster = await Cluster(5, local=Local.ALWAYS, ahead=ahead, on_plan=on_plan).start(0, 1)
    clients = innocents(cluster, 7)
    clients[3].may_fail = True
    assert await cluster.finish() == []
    assert isinstance(clients[3].error, Internal) and len(clients[3].seen) == 11
    assert [len(client.seen) for client in clients if client is not clients[3]] == [24] * 6


class NoIsolation(Isolation):
    """The guard removed."""

    async def _compute_again(self, plan: Plan, error: Exception | None, on_layers: object) -> Result:
        assert error is not None
        raise error


@virtual
async def test_without_isolation_a_bad_prompt_kills_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prefill_svc.worker.Isolation", NoIsolation)
    cluster = await Cluster(5, local=Local.NEVER, on_plan=poisonous).start(1, 1)
    innocents(cluster, 3)
    cluster.ask((POISON, 1, 2))
    await cluster.until(lambda: cluster.processes["prefill0"].tasks[0].done(), 5.0)
    assert isinstance(cluster.processes["prefill0"].tasks[0].exception(), FloatingPointError)


@virtual
async def test_a_worker_that_can_compute_nothing_any_more_ends_and_its_requests_go_on_elsewhere() -> None:
    broken = list[str]()

    def on_plan(plan: Plan) -> None:
        if broken:
            raise FloatingPointError("the device is lost")

    cluster = await Cluster(5, local=Local.ALWAYS, on_plan=on_plan).start(0, 1)
    clients = innocents(cluster, 5)
    await cluster.until(lambda: all(client.seen for client in clients))
    broken.append("now")
    loop = cluster.processes["decode0"].tasks[0]
    assert await cluster.until(loop.done, 5.0) and isinstance(loop.exception(), FloatingPointError)
    broken.clear()
    await cluster.kill("decode0")
    cluster.processes["decode0"].tasks.clear()
    await cluster.add(Tier.DECODE, "decode1")
    assert await cluster.finish() == []
    assert all(client.error is None for client in clients)


@virtual
async def test_an_examination_that_makes_steps_fail_ends_alone() -> None:
    cluster = await Cluster(5, on_plan=poisonous).start(1, 1)
    good = innocents(cluster, 4)
    bad = replace(good[0].spec, prompt=(1, POISON, 3), examination=Examination(pooling=Pooling.LAST))
    with pytest.raises(Internal, match="FloatingPointError"):
        await cluster.gateway.examine(bad).embedding()
    assert await cluster.finish() == [] and all(client.error is None for client in good)


# ---- jobs that a gateway should not have sent


def job(**changes: object) -> Job:
    return replace(Job(Ticket(1 << 40, 1, bytes(16)), (1, 2, 3), (), Sampling(max_tokens=4)), **changes)  # type: ignore[arg-type]


def sampled(**changes: object) -> Job:
    return job(sampling=replace(Sampling(max_tokens=4), **changes))  # type: ignore[arg-type]


def adjusted(**changes: object) -> Job:
    return sampled(adjustments=replace(Adjustments(), **changes))  # type: ignore[arg-type]


NAN = float("nan")
MARK = (TokenSequence((1,)),)
UNSOUND = {
    "prompt is empty": job(prompt=()),
    "prompt holds token 997": job(prompt=(1, 997, 2)),
    "prompt holds token -1": job(prompt=(1, -1)),
    "emitted holds token 5000": job(emitted=(5000,)),
    "start_seconds is nan": job(start_seconds=NAN),
    "max_tokens is 4": job(emitted=(1, 2, 3, 4)),
    "max_tokens is 0": sampled(max_tokens=0),
    "temperature is nan": sampled(temperature=NAN),
    "temperature is -1.0": sampled(temperature=-1.0),
    "top_p is 0": sampled(top_p=0.0),
    "top_p is 1.5": sampled(top_p=1.5),
    "min_p is nan": sampled(min_p=NAN),
    "top_k is 4294967295": sampled(top_k=2**32 - 1),
    "choice is": sampled(choice=2**31),
    "a stop id is": sampled(stop_ids=(1, 2**31)),
    "deadline_seconds is nan": job(deadline_seconds=NAN),
    "priority is": job(priority=2**31 - 1),
    "biases holds token 997": adjusted(biases=(TokenBias(997, 1.0),)),
    "biases is nan": adjusted(biases=(TokenBias(1, NAN),)),
    "repetition_penalty is 0.0": adjusted(repetition_penalty=0.0),
    "suppressed_ids holds token 1000": adjusted(suppressed_ids=(1000,)),
    "bad_words holds an empty": adjusted(bad_words=(TokenSequence(()),)),
    "reasoning has an empty mark": adjusted(reasoning=ReasoningBudget(1, (), MARK)),
    "reasoning holds token 999": adjusted(reasoning=ReasoningBudget(1, MARK, (TokenSequence((999,)),))),
    "reasoning holds token 998": adjusted(reasoning=ReasoningBudget(1, MARK, MARK, ends=(998,))),
    "reasoning holds token 997": adjusted(reasoning=ReasoningBudget(1, MARK, MARK, spaces=(997,))),
    "reasoning.barred is 1": adjusted(reasoning=ReasoningBudget(1, MARK, MARK, barred=1)),
    "bad_words holds token 998": adjusted(bad_words=(TokenSequence((1, 998)),)),
}


@pytest.mark.parametrize("fault", UNSOUND)
def test_an_unsound_job_is_refused_in_words_that_name_the_field(fault: str) -> None:
    limits = JobLimits(997, 64)
    for message in (Open(UNSOUND[fault], None), Prefill(UNSOUND[fault], "decode", 1)):
        refusal = limits.refusal(message)
        assert refusal is not None and refusal[0] is Reason.FAILED and refusal[1].startswith(fault)


def test_a_sound_job_and_one_that_only_another_model_could_take_are_told_apart() -> None:
    limits = JobLimits(997, 8)
    assert limits.refusal(Open(job(), None)) is None
    assert limits.refusal(Examine(job(prompt=(1,) * 8), Examination())) is None
    for message in (Open(sampled(max_tokens=6), None), Examine(job(prompt=(1,) * 9), Examination())):
        refusal = limits.refusal(message)
        assert refusal is not None and refusal[0] is Reason.TOO_LARGE and "context is 8" in refusal[1]


class RefusedJobs:
    """A gateway's session that keeps what a worker sends."""

    name = "gateway"

    def __init__(self) -> None:
        self.sent: list[object] = []

    def send(self, message: object) -> None:
        self.sent.append(message)


@pytest.mark.parametrize("tier", ["prefill0", "decode0"])
@virtual
async def test_a_worker_that_gets_unsound_jobs_refuses_each_and_serves_the_others(tier: str) -> None:
    cluster = await Cluster(5).start(1, 1)
    good = innocents(cluster, 4)
    await asyncio.sleep(0.005)
    worker, gateway = cluster.processes[tier].worker, RefusedJobs()
    receive: Callable[[Session, object], None] = worker.attachments._receive  # type: ignore[assignment]
    bad = [each for each in UNSOUND.values() if JobLimits(0, 4096).refusal(Open(each, None))]
    for each in bad:
        receive(cast(Session, gateway), Prefill(each, "decode0", 1) if tier == "prefill0" else Open(each, None))
    receive(cast(Session, gateway), Examine(job(prompt=()), Examination()))
    assert await cluster.finish() == [] and all(client.error is None for client in good)
    assert [type(message) for message in gateway.sent] == [Lost] * (len(bad) + 1) and len(bad) > 12


class Anything(JobLimits):
    """The guard removed."""

    def refusal(self, message: Open | Prefill | Examine) -> tuple[Reason, str] | None:
        return None


@virtual
async def test_without_the_check_one_empty_prompt_ends_a_worker_with_all_its_requests() -> None:
    cluster = await Cluster(5, local=Local.ALWAYS).start(0, 1)
    innocents(cluster, 4)
    await asyncio.sleep(0.005)
    worker, loop = cluster.processes["decode0"].worker, cluster.processes["decode0"].tasks[0]
    worker.attachments._limits = Anything(0, 4096)
    worker.attachments._receive(cast(Session, RefusedJobs()), Open(job(prompt=()), None))
    assert await cluster.until(loop.done, 5.0) and loop.exception() is not None
