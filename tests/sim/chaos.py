"""One seed is one simulated run: random requests and random faults, then quiet, then a list of violations."""

import asyncio
import hashlib
from dataclasses import dataclass
from random import Random

from decode_svc.speculation.speculation import DraftSource
from mesh.errors import Cancelled, WorkersDied
from mesh.messages import Sampling
from mesh.rules import RULES, Rules
from tests.sim.cluster import Cluster
from tests.sim.loop import run_virtual
from tests.sim.model import VOCABULARY


@dataclass(frozen=True)
class SeedOutcome:
    seed: int
    violations: list[str]
    event_log_hash: str
    requests: int
    errors: int
    faults: dict[str, int]


def run_seed(
    seed: int,
    *,
    requests: int = 40,
    faults: bool = True,
    rules: Rules = RULES,
    source: DraftSource = DraftSource.OFF,
    ahead: bool = False,
) -> SeedOutcome:
    return run_virtual(_run(seed, requests, faults, rules, source, ahead))


async def _run(seed: int, requests: int, faults: bool, rules: Rules, source: DraftSource, ahead: bool) -> SeedOutcome:
    random = Random(seed * 7919 + 13)
    cluster = Cluster(
        seed,
        rules=rules,
        one_sided=random.random() < 0.6,
        pages=random.choice((24, 48, 96)),
        may_kill=True,
        cache=random.random() < 0.7,
        chunk_tokens=random.choice((4, 8, 16)),
        source=source,
        ahead=ahead,
        vocabulary=2 if source is DraftSource.LOOKUP else VOCABULARY,
    )
    await cluster.start(random.randint(1, 3), random.randint(1, 3))
    prompts = [tuple(random.randrange(50) for _ in range(random.randint(1, 30))) for _ in range(8)]
    counted: dict[str, int] = {}
    trouble = asyncio.ensure_future(_trouble(cluster, random, counted)) if faults else None
    for _ in range(requests):
        prompt = random.choice(prompts) + tuple(random.randrange(50) for _ in range(random.randint(0, 12)))
        temperature = random.choice((0.0, 1.0))
        stop = (random.randrange(997),) if random.random() < 0.3 else ()
        sampling = Sampling(
            temperature=temperature, seed=random.getrandbits(32), max_tokens=random.randint(1, 20), stop_ids=stop
        )
        client = cluster.ask(prompt, sampling)
        client.may_fail = faults  # three of its workers may really have died
        if faults and random.random() < 0.1:
            delay = random.uniform(0, 0.2)
            counted["cancel"] = counted.get("cancel", 0) + 1
            asyncio.get_running_loop().call_later(delay, client.handle.cancel)
        await asyncio.sleep(random.expovariate(1 / 0.02))
    if trouble is not None:
        trouble.cancel()
        for process in list(cluster.processes.values()):
            cluster.thaw(process.name)
            if not process.alive:
                await cluster.add(process.tier, process.name)
    violations = await cluster.finish()
    failed = [c for c in cluster.clients if c.error and not isinstance(c.error, (Cancelled, WorkersDied))]
    violations += [f"{c.spec.request_id} ends with {c.error!r}" for c in failed]
    text = repr([(at, *rest) for at, *rest in cluster.network.log]) + repr([c.seen for c in cluster.clients])
    errors = sum(c.error is not None for c in cluster.clients)
    return SeedOutcome(seed, violations, hashlib.sha256(text.encode()).hexdigest()[:16], requests, errors, counted)


async def _trouble(cluster: Cluster, random: Random, counted: dict[str, int]) -> None:
    while True:
        await asyncio.sleep(random.expovariate(1 / 0.15))
        kind = random.choice(("kill", "freeze", "thaw", "snap", "damage"))
        counted[kind] = counted.get(kind, 0) + 1
        names = sorted(cluster.processes)
        name = random.choice(names)
        process = cluster.processes[name]
        if kind == "kill":
            await cluster.kill(name)
            await asyncio.sleep(random.uniform(0.01, 0.5))
            await cluster.add(process.tier, name)
        elif kind == "freeze":
            cluster.freeze(name)
            asyncio.get_running_loop().call_later(random.choice((0.05, 3.0, 8.0)), cluster.thaw, name)
        elif kind == "snap":
            cluster.network.snap(name, random.choice(["gateway", *names]))
        elif kind == "damage":
            cluster.fabric.spoil += random.randint(1, 3)
