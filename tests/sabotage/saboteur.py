"""The saboteur of `baton verify --sabotage`: it checks the same cell clean and with one thing wrong.

`page` flips one bit of a key on its way into decode with checks off, once for each of 20 prompts: all 20 answers must
differ. With checks on, the same damage must be repaired. `fallback` lets decode prefill silently. `batch` gives decode
a product whose sum depends on the batch, on every path that computes with bf16: `pairs`, `amx` and a GPU's. `scale`
gives it quantized matrices of which one scale is wrong. Of pages in int8 `page` flips a bit of a key's scale."""

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import baton_kernels
from cli.errors import MeshFailed
from cli.output import say
from cli.verify.bodies import bodies
from cli.verify.cell_mesh import Tampering
from cli.verify.cells import Cell
from cli.verify.checks import Models, check
from cli.verify.devices import DevicePart
from cli.verify.reference import Reference
from cli.verify.requests import VerifyRequest, requests_of
from cli.verify.sabotage import Sabotage, Sabotaged
from engine.model.weights import Weights, open_weights
from mesh.config.common_config import default_cache_folder
from mesh.messages.jobs import Sampling
from tests.sabotage.faults import Fault, choose_damage

SEEDS = 20
_CELL = Cell(transport="shm", chunk=128, page=32, batch=8, workers=1, cache=False, speculation="off", path="pairs")
_WAYS = {Sabotage.BATCH: ("pairs", "amx"), Sabotage.PAGE: ("pairs", "kv-int8"), Sabotage.SCALE: ("int8", "int4")}


async def sabotage(kind: Sabotage, part: DevicePart, models: Models, seed: int) -> list[Sabotaged]:
    """MeshFailed when the clean cell is not clean, or when a repair that must work does not."""
    return [
        await _sabotage(kind, cell, part.references, models=models, seed=seed)
        for cell in sabotaged_cells(kind, list(part.references))
    ]


def sabotaged_cells(kind: Sabotage, paths: Sequence[str]) -> list[Cell]:
    """One cell for each path that the sabotage concerns. On a GPU the sabotaged decode worker runs graphs."""
    wanted = _WAYS.get(kind, ("pairs",))
    on_gpu = [replace(_CELL, transport="cuda_ipc", path=f"{path}:eager") for path in paths if path.startswith("cuda-")]
    on_gpu = [] if kind is Sabotage.SCALE else on_gpu
    return [replace(_CELL, path=f"{path}:{bodies(path)[-1]}") for path in paths if path in wanted] + on_gpu


def broken_decode(fault: Fault, file: Path) -> Tampering:
    """Every decode worker does what the fault says, which it reads from `file`."""
    return Tampering(decode_program=("tests.sabotage.broken_worker", str(fault.write(file))))


async def _sabotage(
    kind: Sabotage, cell: Cell, references: Mapping[str, Reference], *, models: Models, seed: int
) -> Sabotaged:
    requests = _damaged_requests(seed) if kind is Sabotage.PAGE else requests_of(cell, seed)
    clean = await check(cell, requests, references, models=models)
    say(f"clean    {clean.line}")
    if not (clean.equal and clean.handed_off):
        raise MeshFailed("the cell is not clean before it is sabotaged; run `baton verify` first")
    if kind is Sabotage.FALLBACK:
        spoilt = await check(cell, requests, references, models=models, tampering=Tampering(local="always"))
        noticed, wanted = spoilt.admitted - spoilt.remote, 1
    else:
        with tempfile.TemporaryDirectory(prefix="baton-verify-") as scratch:
            file = Path(scratch) / "fault.json"
            kv = "int8" if clean.roles.path == "kv-int8" else baton_kernels.OWN
            weights = open_weights(models.model, default_cache_folder(), product_path="pairs", kv=kv)
            reference = references[clean.roles.path]
            fault = await asyncio.to_thread(_fault, kind, requests, reference, weights, seed)
            if kind is Sabotage.PAGE:
                tampering = broken_decode(replace(fault, checks=True), file)
                repaired = await check(cell, requests, references, models=models, tampering=tampering)
                say(f"repaired {repaired.line}, {repaired.bytes_resent} sent again")
                if not (repaired.equal and repaired.handed_off and repaired.bytes_resent):
                    raise MeshFailed("with checks on, damaged pages must be found and sent again, and were not")
            spoilt = await check(cell, requests, references, models=models, tampering=broken_decode(fault, file))
        noticed, wanted = len(spoilt.differing), SEEDS if kind is Sabotage.PAGE else 1
    say(f"spoilt   {spoilt.line}")
    return Sabotaged(clean, spoilt, noticed, wanted)


def _damaged_requests(seed: int) -> tuple[VerifyRequest, ...]:
    """One prompt for each seed, greedy and seeded in turn."""
    requests = []
    for number in range(SEEDS):
        random = Random(f"{seed} page {number}")
        prompt = tuple(random.randrange(256) for _ in range(random.randrange(40, 300)))
        temperature = number % 2 * 0.5
        sampling = Sampling(temperature=temperature, seed=number, max_tokens=16, top_logprobs=3)
        requests.append(VerifyRequest(prompt, sampling))
    return tuple(requests)


def _fault(
    kind: Sabotage, requests: tuple[VerifyRequest, ...], reference: Reference, weights: Weights, seed: int
) -> Fault:
    if kind is Sabotage.BATCH:
        return Fault(split_product=True)
    if kind is Sabotage.SCALE:
        return Fault(wrong_scale=True)
    damages = []
    for number, request in enumerate(requests):
        first = reference.answer(request)[0].token
        damages.append(
            choose_damage(weights, request.prompt, first, page_tokens=_CELL.page, seed=seed * SEEDS + number)
        )
    return Fault(damages=tuple(damages), checks=False)
