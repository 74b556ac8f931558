"""Open-loop load on a simulated mesh: how many requests get their first token and the following ones in time.

Clients come at random times whether or not earlier ones are served, as they do in life. The costs of a step are so high
that minutes of virtual time cost little real time."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random

from gateway.routing.router import Local
from mesh.errors import Overloaded
from mesh.messages.jobs import Sampling
from tests.sim.cluster import Cluster, SimClient

QUEUE_SECONDS = 2.0
TTFT_SECONDS = 2.5 * QUEUE_SECONDS  # from the request to its first token
ITL_SECONDS = 0.15  # mean time between its tokens; a step of a full batch takes 0.054 s
KINDS = {"short": (4, 4), "middle": (16, 10), "long": (40, 26)}  # tokens of prompt and answer


@dataclass
class TimedClient:
    kind: str
    came_seconds: float
    client: SimClient | None = None  # None: it was refused at the door
    times: list[float] = field(default_factory=list)  # when its tokens came

    @property
    def served(self) -> bool:
        return self.client is not None and self.client.error is None

    @property
    def good(self) -> bool:
        """It was served, and in time."""
        if not self.served:
            return False
        first, last = self.times[0], self.times[-1]
        return first - self.came_seconds <= TTFT_SECONDS and (last - first) / (len(self.times) - 1) <= ITL_SECONDS


@dataclass(frozen=True)
class LoadOutcome:
    clients: list[TimedClient]
    seconds: float
    computed_tokens: int  # rows of prompts that steps have computed

    @property
    def goodput(self) -> float:
        """Requests per second that were served in time."""
        return sum(each.good for each in self.clients) / self.seconds

    @property
    def refused(self) -> int:
        return sum(each.client is None for each in self.clients)

    @property
    def wasted(self) -> float:
        """The share of the computed prompt tokens that served no request."""
        useful = sum(len(each.client.spec.prompt) for each in self.clients if each.client and each.served)
        return 1 - useful / self.computed_tokens

    @property
    def success_ratio(self) -> float:
        """How much likelier a request of the luckiest length is to be served in time than one of the unluckiest."""
        came, good = Counter(each.kind for each in self.clients), Counter(e.kind for e in self.clients if e.good)
        shares = [good[kind] / came[kind] for kind in KINDS]
        return max(shares) / min(shares) if min(shares) else float("inf")


def overloaded_cluster(*, queue_seconds: float = QUEUE_SECONDS, pages: int = 256, max_batch: int = 8) -> Cluster:
    """One worker of each tier; both serve about ten requests of the mix a second."""
    return Cluster(
        1,
        pages=pages,
        prefill_pages=256,
        max_batch=max_batch,
        local=Local.NEVER,
        cache=False,
        queue_seconds=queue_seconds,
        step_seconds=0.03,
        row_seconds=0.003,
    )


async def run_load(
    cluster: Cluster, rate: float, seconds: float, *, deadline_seconds: float | None = None, seed: int = 1
) -> LoadOutcome:
    """Clients come at this rate; those that have no answer long after it was due leave."""
    random, clients, before = Random(seed), list[TimedClient](), computed_tokens(cluster)
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while loop.time() < end:
        await asyncio.sleep(random.expovariate(rate))
        clients.append(come(cluster, random, deadline_seconds))
    tasks = [each.client.task for each in clients if each.client and each.client.task]
    await asyncio.wait(tasks, timeout=2 * TTFT_SECONDS)
    for each in clients:
        if each.client is not None:
            each.client.handle.cancel()
    await asyncio.gather(*tasks)
    return LoadOutcome(clients, seconds, computed_tokens(cluster) - before)


def come(cluster: Cluster, random: Random, deadline_seconds: float | None = None) -> TimedClient:
    """One client of a random kind."""
    kind = random.choice(list(KINDS))
    prompt, answer = KINDS[kind]
    timed = TimedClient(kind, asyncio.get_running_loop().time())
    tokens = tuple(random.randrange(50) for _ in range(prompt))
    try:
        timed.client = cluster.ask(tokens, Sampling(max_tokens=answer), deadline_seconds, reads=noted(timed.times))
    except Overloaded as error:
        assert error.retry_after_seconds, "a refusal says when another try makes sense"
    else:
        timed.client.may_fail = True
    return timed


def noted(times: list[float]) -> Callable[[], Awaitable[None]]:
    async def note() -> None:
        times.append(asyncio.get_running_loop().time())

    return note


def computed_tokens(cluster: Cluster) -> int:
    """Rows of prompts that the steps of both tiers have computed so far."""
    workers = [process.worker for process in cluster.processes.values()]
    pieces = [piece for worker in workers for plan in worker.plans or () for piece in plan.pieces]
    return sum(len(piece.tokens) for piece in pieces if len(piece.tokens) > piece.sampled)
