"""The outcome of a cell: the answers of its mesh to all requests, and the counts of its workers.

Requests are sent as a client sends them. The counts are read when every answer is complete, hence when every byte that
mattered has landed."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

from baton.client import Client
from cli.errors import MeshFailed
from cli.verify.answers import Best, best
from cli.verify.bodies import Roles
from cli.verify.cell_mesh import CellMesh, Tampering, running_cell
from cli.verify.requests import VerifyRequest
from mesh.network.grpc_stats import read_stats

ANSWER_SECONDS = 180.0  # longest time for one answer, its wait for others included


@dataclass(slots=True)
class CellOutcome:
    """Answers of a mesh, and what its workers counted, summed over each tier."""

    answers: list[tuple[Best, ...]]
    numerics: tuple[str, str]  # class, fingerprint
    prefill: Counter[str] = field(default_factory=Counter)
    decode: Counter[str] = field(default_factory=Counter)
    bodies: frozenset[tuple[str, str]] = frozenset()  # (tier, body) as the workers reported them

    @property
    def remote(self) -> int:
        """Requests of which a prefill worker computed every token of the prompt."""
        return self.decode["admitted_remote"]

    @property
    def admitted(self) -> int:
        return self.remote + self.decode["admitted_patched"] + self.decode["admitted_local"]

    @property
    def bytes_moved(self) -> int:
        """Bytes that the writers counted, without Resends."""
        return self.prefill["bytes_written"] - self.prefill["bytes_resent"]

    @property
    def bytes_expected(self) -> int:
        """Bytes that the landings counted: page ids times page bytes."""
        return self.decode["bytes_landed"]

    @property
    def bytes_given_up(self) -> int:
        """Those of landings that decode gave up; their writers may have been stopped before the last byte."""
        return self.decode["bytes_given_up"]

    def add(self, tier: str, stats: Mapping[str, int]) -> None:
        """Add one worker's counts; a largest batch is a maximum, not a sum."""
        counts = self.prefill if tier == "prefill" else self.decode
        largest = max(counts["largest_batch"], stats.get("largest_batch", 0))
        counts.update(stats)
        counts["largest_batch"] = largest


async def run_cell(
    settings: Mapping[str, str],
    requests: Sequence[VerifyRequest],
    *,
    batch: int,
    folder: Path,
    roles: Roles | None = None,  # None: every worker runs its fastest body
    tampering: Tampering | None = None,
    answer_seconds: float = ANSWER_SECONDS,
    head_start_seconds: float = 0.0,  # the first request starts this long before the others
) -> CellOutcome:
    """Start a mesh, send it all requests with at most `batch` under way, and stop it."""
    async with running_cell(settings, folder, tampering or Tampering(), roles) as mesh:
        classes: set[tuple[str, str]] = set()
        turn = asyncio.Semaphore(batch)

        async def ask(client: Client, number: int, request: VerifyRequest) -> tuple[Best, ...]:
            await asyncio.sleep(head_start_seconds if number else 0)
            async with turn:
                return await answer_of(client, request, f"verify-{number}", classes, answer_seconds)

        try:
            async with client_of(mesh) as client, asyncio.TaskGroup() as group:
                tasks = [group.create_task(ask(client, number, request)) for number, request in enumerate(requests)]
        except ExceptionGroup as errors:
            raise MeshFailed(await _failure(mesh, errors.exceptions[0])) from None
        if len(classes) != 1:
            raise MeshFailed(f"one mesh answered in {len(classes)} numerics classes: {sorted(classes)}")
        outcome = CellOutcome([task.result() for task in tasks], classes.pop())
        outcome.bodies = frozenset((worker.tier, worker.body) for worker in mesh.workers.values())
        for worker in mesh.workers.values():
            outcome.add(worker.tier, await read_stats(worker.address, tls=mesh.tls, token=mesh.token))
        return outcome


async def answer_of(
    client: Client, request: VerifyRequest, name: str, classes: set[tuple[str, str]], answer_seconds: float
) -> tuple[Best, ...]:
    """One answer bit by bit; its numerics class is added to `classes`."""
    out: list[Best] = []
    async with aclosing(client.stream(request.message(name), timeout_seconds=answer_seconds)) as events:
        async for event in events:
            if event.HasField("started"):
                classes.add((event.started.numerics_class.name, event.started.numerics_class.fingerprint))
            elif event.HasField("delta"):
                delta = event.delta
                out.extend(
                    best(token, entry.logprob, entry.top_ids, entry.top_logprobs)
                    for token, entry in zip(delta.token_ids, delta.logprobs, strict=True)
                )
    return tuple(out)


def client_of(mesh: CellMesh) -> Client:
    if mesh.tls is None:
        return Client(mesh.gateway)
    return Client(mesh.gateway, credentials=mesh.tls.channel_credentials(), server_name=mesh.tls.name)


async def _failure(mesh: CellMesh, error: Exception) -> str:
    states = [f"    {name} {await _stats(worker.address, mesh)}" for name, worker in mesh.workers.items()]
    return "\n".join([f"no answer: {error}", *states, *mesh.last_lines])


async def _stats(address: str, mesh: CellMesh) -> str:
    try:
        return str(await read_stats(address, tls=mesh.tls, token=mesh.token))
    except Exception as error:
        return f"its counts cannot be read: {error}"
