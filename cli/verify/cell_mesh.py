"""A cell in the flesh: its mesh as real processes on free ports, its asks sent as a client sends them, its counts read.

`local` is never: whatever decode answered must have come through a hand-off, and the workers' own counts say whether it
did. The counts are read when every answer is complete, hence when every byte that mattered has landed."""

import asyncio
import os
import re
from collections import Counter, deque
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from baton.client import Client
from cli.mesh import services_of
from cli.ports import free_address
from cli.running import running_mesh
from cli.supervisor import MeshFailed, Service
from cli.verify.answers import Best, best
from cli.verify.asks import Ask
from cli.verify.bodies import Roles
from cli.verify.cells import Cell
from mesh.grpc_stats import read_stats
from mesh.settings import read_settings

START_SECONDS = 180.0  # where a GPU's kernels were never compiled before, each worker does it
ANSWER_SECONDS = 180.0  # for one request, the wait for others included
STEP_TOKENS = 512  # of a prefill step
POOL_TOKENS = 32 * 1024  # enough that nobody is preempted
READY = re.compile(r"(prefill|decode) ready at (\S+) .* body (\S+)")


@dataclass(frozen=True, slots=True)
class Spoiled:
    """A sabotage: what every decode worker is told to do wrong, and how the gateway routes."""

    decode: Path | None = None  # a file for cli/verify/broken_worker.py
    local: str = "never"


@dataclass(slots=True)
class Outcome:
    """What a mesh answered, and what its workers counted, summed over each tier."""

    answers: list[tuple[Best, ...]]
    numerics: tuple[str, str]  # class, fingerprint
    prefill: Counter[str] = field(default_factory=Counter)
    decode: Counter[str] = field(default_factory=Counter)
    bodies: frozenset[tuple[str, str]] = frozenset()  # (tier, body) as the workers said

    @property
    def remote(self) -> int:
        """Requests of which a prefill worker computed every token of the prompt."""
        return self.decode["admitted_remote"]

    @property
    def admitted(self) -> int:
        return self.remote + self.decode["admitted_patched"] + self.decode["admitted_local"]

    @property
    def bytes_moved(self) -> int:
        """As the writers counted them, without Resends."""
        return self.prefill["bytes_written"] - self.prefill["bytes_resent"]

    @property
    def bytes_expected(self) -> int:
        """As the landings counted them: page ids times page bytes."""
        return self.decode["bytes_landed"]


def settings_of(cell: Cell) -> dict[str, str]:
    """As on a command line."""
    return {
        "mesh.prefill_workers": str(cell.workers),
        "mesh.decode_workers": str(cell.workers),
        "worker.device": cell.device,
        "worker.product_path": cell.path.partition(":")[0] if cell.device == "cpu" else "auto",  # body: environment
        "worker.speculation": cell.speculation,
        "worker.transports": cell.transport,
        "worker.chunk_tokens": str(cell.chunk),
        "prefill.step_tokens": str(STEP_TOKENS),
        "worker.page_tokens": str(cell.page),
        "worker.pool_pages": str(POOL_TOKENS // cell.page),
        "worker.prefix_cache": str(cell.cache).lower(),
        "decode.max_batch": str(cell.batch),
    }


async def ask_mesh(
    settings: Mapping[str, str],
    asks: Sequence[Ask],
    *,
    batch: int,
    folder: Path,
    roles: Roles | None = None,  # None: every worker runs its fastest body
    restless: bool = False,  # decode drafts at every batch
    spoiled: Spoiled | None = None,
    answer_seconds: float = ANSWER_SECONDS,
    head_start_seconds: float = 0.0,  # of the first ask
) -> Outcome:
    """Start a mesh, ask it everything with at most `batch` under way, stop it."""
    async with _mesh(settings, folder, spoiled or Spoiled(), roles, restless) as (gateway, workers, said):
        classes: set[tuple[str, str]] = set()
        turn = asyncio.Semaphore(batch)

        async def one(client: Client, number: int, ask: Ask) -> tuple[Best, ...]:
            await asyncio.sleep(head_start_seconds if number else 0)
            async with turn:
                return await answer_of(client, ask, f"verify-{number}", classes, answer_seconds)

        try:
            async with Client(gateway) as client, asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(client, number, ask)) for number, ask in enumerate(asks)]
        except ExceptionGroup as errors:
            states = [f"    {name} {await _stats(address)}" for (_, name), (address, _) in workers.items()]
            raise MeshFailed("\n".join([f"no answer: {errors.exceptions[0]}", *states, *said])) from None
        if len(classes) != 1:
            raise MeshFailed(f"one mesh answered in {len(classes)} numerics classes: {sorted(classes)}")
        outcome = Outcome([task.result() for task in tasks], classes.pop())
        outcome.bodies = frozenset((tier, body) for (tier, _), (_, body) in workers.items())
        for (tier, _), (address, _) in workers.items():
            counts: Counter[str] = outcome.prefill if tier == "prefill" else outcome.decode
            stats = await read_stats(address)
            largest = max(counts["largest_batch"], stats.pop("largest_batch", 0))
            counts.update(stats)
            counts["largest_batch"] = largest
        return outcome


async def _stats(address: str) -> str:
    try:
        return str(await read_stats(address))
    except Exception as error:
        return f"does not tell its counts: {error}"


async def answer_of(
    client: Client, ask: Ask, name: str, classes: set[tuple[str, str]], answer_seconds: float
) -> tuple[Best, ...]:
    out: list[Best] = []
    async with aclosing(client.stream(ask.request(name), timeout_seconds=answer_seconds)) as events:
        async for event in events:
            if event.HasField("started"):
                classes.add((event.started.numerics_class.name, event.started.numerics_class.fingerprint))
            elif event.HasField("delta"):
                delta = event.delta
                out.extend(
                    best(token, one.logprob, one.top_ids, one.top_logprobs)
                    for token, one in zip(delta.token_ids, delta.logprobs, strict=True)
                )
    return tuple(out)


@asynccontextmanager
async def _mesh(
    settings: Mapping[str, str], folder: Path, spoiled: Spoiled, roles: Roles | None, restless: bool
) -> AsyncIterator[tuple[str, Mapping[tuple[str, str], tuple[str, str]], Collection[str]]]:
    """The gateway's gRPC address, each worker's and its body by tier and name, and everybody's last lines."""
    said = {
        "model": str(folder),
        "served_name": folder.name,
        "gateway.http_address": free_address(),
        "gateway.grpc_address": free_address(),
        "gateway.local": spoiled.local,
        **settings,
    }
    mesh = read_settings(None, os.environ, said).mesh()
    services = services_of(mesh, file=None, said=said, otlp_endpoint="")
    if roles is not None:
        services = [embodied(service, roles) for service in services]
    if spoiled.decode is not None:
        services = [instead(service, "cli.verify.broken_worker", str(spoiled.decode)) for service in services]
    elif restless:
        services = [instead(service, "cli.verify.restless_worker") for service in services]
    workers: dict[tuple[str, str], tuple[str, str]] = {}
    last_lines: deque[str] = deque(maxlen=30)

    def on_line(name: str, line: str) -> None:
        last_lines.append(f"    {name}: {line}")
        if found := READY.search(line):
            workers[found[1], name] = found[2], found[3]

    async with running_mesh(mesh, services, on_line, START_SECONDS):
        yield mesh.gateway.grpc_address, workers, last_lines


def instead(service: Service, module: str, *arguments: str) -> Service:
    """A decode worker that runs under another module, a harness around it; all others stay."""
    if _tier(service) != "decode":
        return service
    return replace(service, arguments=("-m", module, *arguments, *service.arguments[len(_SERVE) + 1 :]))


def embodied(service: Service, roles: Roles) -> Service:
    """A worker that runs the body of its tier."""
    tier = _tier(service)
    return service if tier == "gateway" else replace(service, environment=roles.environment(tier))


_SERVE = ("-m", "cli", "serve")


def _tier(service: Service) -> str:
    assert service.arguments[: len(_SERVE)] == _SERVE, service.arguments
    return service.arguments[len(_SERVE)]
