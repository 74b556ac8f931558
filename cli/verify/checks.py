"""Checks one cell: compares the answers of its mesh with the reference, and the counts of its workers with the counts
that a real hand-off gives."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cli.errors import MeshFailed
from cli.verify.answers import compare
from cli.verify.bodies import Roles, roles
from cli.verify.cell_mesh import Tampering, settings_of
from cli.verify.cells import Cell
from cli.verify.gpu import two_ranks
from cli.verify.outcomes import CellOutcome, run_cell
from cli.verify.reference import Reference
from cli.verify.requests import VerifyRequest


@dataclass(frozen=True, slots=True)
class Models:
    """Model folders of a run."""

    model: Path
    draft: Path


RESTLESS = ("cli.verify.restless_worker",)  # the decode workers of a cell with speculation


@dataclass(frozen=True, slots=True)
class Checked:
    cell: Cell
    prompts: int
    token_mismatches: int  # answers with another token
    logprob_mismatches: int  # answers with other bits in a logprob
    differing: tuple[int, ...]  # numbers of the answers that differ
    remote: int  # requests whose whole prompt a prefill worker computed
    admitted: int  # requests that decode admitted
    committed: int  # prompts that prefill handed over
    bytes_moved: int
    bytes_expected: int
    bytes_given_up: int  # expected bytes that belong to landings which an overloaded machine gave up
    bytes_resent: int
    largest_batch: int  # requests in the largest decode step
    drafted: int  # drafted tokens that the model verified
    accepted: int  # drafted tokens that the model accepted
    roles: Roles
    numerics: tuple[str, str]
    seconds: float

    @property
    def equal(self) -> bool:
        return not self.token_mismatches and not self.logprob_mismatches

    @property
    def handed_off(self) -> bool:
        """Every prompt was prefilled remotely, and the bytes are those of the landings."""
        return self.remote == self.admitted == self.committed == self.prompts and self.bytes_are_those_expected

    @property
    def bytes_are_those_expected(self) -> bool:
        least = self.bytes_expected - self.bytes_given_up
        return 0 < least <= self.bytes_moved <= self.bytes_expected

    @property
    def speculated(self) -> bool:
        """With speculation, drafts were accepted and refused; without it there were no drafts."""
        return self.drafted == 0 if self.cell.speculation == "off" else 0 < self.accepted < self.drafted

    @property
    def line(self) -> str:
        answers = "equal" if self.equal else f"{len(self.differing)} DIFFER"
        expected = f" ({self.bytes_given_up} of landings given up)" if self.bytes_given_up else ""
        if not self.bytes_are_those_expected:
            expected += f" (NOT the {self.bytes_expected} that landed)"
        return (
            f"{self.cell}  {self.prompts} prompts {answers}, {self.remote} of {self.admitted} prefilled remotely, "
            f"{self.bytes_moved} bytes moved{expected}, batches up to {self.largest_batch}, "
            f"{self.accepted} of {self.drafted} drafts accepted{'' if self.speculated else ' (NOT both kinds)'}, "
            f"bodies {self.roles.prefill} > {self.roles.decode} = {self.roles.alone}, {self.seconds:.1f} s"
        )

    def row(self) -> dict[str, Any]:
        cell = self.cell
        return {
            "transport": cell.transport,
            "device": cell.device,
            "chunk": cell.chunk,
            "page": "{}>{}".format(*cell.pages),
            "batch": cell.batch,
            "workers": f"{cell.workers}P{cell.workers}D",
            "prefix_cache": cell.cache,
            "path": self.roles.path,
            "bodies": {"prefill": self.roles.prefill, "decode": self.roles.decode, "alone": self.roles.alone},
            "speculation": cell.speculation,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "prompts": self.prompts,
            "token_mismatches": self.token_mismatches,
            "logprob_mismatches": self.logprob_mismatches,
            "remote": self.remote,
            "bytes_moved": self.bytes_moved,
            "bytes_expected": self.bytes_expected,
            "bytes_given_up": self.bytes_given_up,
            "bytes_resent": self.bytes_resent,
            "largest_batch": self.largest_batch,
            "seconds": round(self.seconds, 2),
        }


async def check_all(
    cells: Sequence[tuple[Cell, Sequence[VerifyRequest]]],
    references: Mapping[str, Reference],
    *,
    models: Models,
    abreast: int,
) -> AsyncIterator[tuple[Cell, Checked | Exception]]:
    """Check `abreast` cells at a time and yield each when it is done; an exception stands for a cell that could not be
    checked."""
    turn = asyncio.Semaphore(abreast)

    async def check_one(cell: Cell, requests: Sequence[VerifyRequest]) -> tuple[Cell, Checked | Exception]:
        async with turn:
            try:
                return cell, await check(cell, requests, references, models=models)
            except Exception as error:
                return cell, error

    tasks = [asyncio.ensure_future(check_one(cell, requests)) for cell, requests in cells]
    try:
        for done in asyncio.as_completed(tasks):
            yield await done
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def check(
    cell: Cell,
    requests: Sequence[VerifyRequest],
    references: Mapping[str, Reference],
    *,
    models: Models,
    tampering: Tampering | None = None,
) -> Checked:
    """Compute the expected answers first: on a CPU the mesh then has the machine to itself."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    parts = roles(cell.path)
    if cell.transport == "nccl":
        parts = replace(parts, around=two_ranks())
    reference = references[parts.path]
    reference.run_body(parts.alone)
    expected = await asyncio.to_thread(reference.answers, requests)
    settings = settings_of(cell) | ({"draft": str(models.draft)} if cell.speculation == "draft" else {})
    tampering = tampering or Tampering()
    if cell.speculation != "off" and not tampering.decode_program:
        tampering = replace(tampering, decode_program=RESTLESS)
    outcome = await run_cell(
        settings, requests, batch=cell.batch, folder=models.model, roles=parts, tampering=tampering
    )
    if outcome.bodies != {("prefill", parts.prefill), ("decode", parts.decode)}:
        raise MeshFailed(f"the workers run {sorted(outcome.bodies)}; their environment names {parts}")
    identity = reference.identity
    if outcome.numerics != (identity.numerics, identity.fingerprint):
        raise MeshFailed(f"the mesh computes in class {outcome.numerics}, this process in {identity}")
    differences = [compare(*pair) for pair in zip(expected, outcome.answers, strict=True)]
    return _checked(cell, parts, outcome, differences, loop.time() - began)


def _checked(cell: Cell, parts: Roles, outcome: CellOutcome, differences: Sequence[Any], seconds: float) -> Checked:
    return Checked(
        cell=cell,
        prompts=len(outcome.answers),
        token_mismatches=sum(each.token is not None for each in differences),
        logprob_mismatches=sum(each.logprob is not None for each in differences),
        differing=tuple(number for number, each in enumerate(differences) if each),
        remote=outcome.remote,
        admitted=outcome.admitted,
        committed=outcome.prefill["committed"],
        bytes_moved=outcome.bytes_moved,
        bytes_expected=outcome.bytes_expected,
        bytes_given_up=outcome.bytes_given_up,
        bytes_resent=outcome.prefill["bytes_resent"],
        largest_batch=outcome.decode["largest_batch"],
        drafted=outcome.decode["drafted"],
        accepted=outcome.decode["accepted"],
        roles=parts,
        numerics=outcome.numerics,
        seconds=seconds,
    )
