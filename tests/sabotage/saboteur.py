"""The negative control: the same cell clean, then with one thing wrong, which must be noticed, by its own counter.

`page` flips one bit of a key on its way into decode with checks off, once for each of 20 prompts, and all 20 must be
reported; with checks on the same bits must be repaired. `fallback` lets decode prefill silently. `batch` gives decode a
product whose sum depends on the batch, on every path that computes with bf16: `pairs` and, by emulation too, tiles."""

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from random import Random

from cli.output import say
from cli.supervisor import MeshFailed
from cli.verify.alone import Alone
from cli.verify.asks import Ask, asks_of
from cli.verify.bodies import bodies
from cli.verify.cells import Cell
from cli.verify.checks import Checked, Models, check
from cli.verify.faults import Fault, choose_damage
from cli.verify.meshed import Spoiled
from cli.verify.parts import Part
from engine.model.weights import Weights, open_weights
from mesh.config import default_cache_folder
from mesh.messages import Sampling

SEEDS = 20
_CELL = Cell(transport="shm", chunk=128, page=32, batch=8, workers=1, cache=False, speculation="off", path="pairs")


class Sabotage(Enum):
    PAGE = "page"
    FALLBACK = "fallback"
    BATCH = "batch"


@dataclass(frozen=True, slots=True)
class Spoilt:
    clean: Checked
    spoilt: Checked
    noticed: int  # by the counter that is meant to
    wanted: int  # at least


async def sabotage(kind: Sabotage, part: Part, *, models: Models, seed: int) -> list[Spoilt]:
    """MeshFailed when the clean cell is not clean, or when a repair that must work does not."""
    return [
        await _sabotage(kind, cell, part.references, models=models, seed=seed)
        for cell in sabotaged_cells(kind, list(part.references))
    ]


def sabotaged_cells(kind: Sabotage, paths: Sequence[str]) -> list[Cell]:
    """On a GPU decode, who is sabotaged, runs graphs."""
    wanted = ("pairs", "amx") if kind is Sabotage.BATCH else ("pairs",)
    on_gpu = [replace(_CELL, transport="cuda_ipc", path=f"{path}:eager") for path in paths if path.startswith("cuda-")]
    return [replace(_CELL, path=f"{path}:{bodies(path)[-1]}") for path in paths if path in wanted] + on_gpu


async def _sabotage(
    kind: Sabotage, cell: Cell, references: Mapping[str, Alone], *, models: Models, seed: int
) -> Spoilt:
    asks = _damaged_asks(seed) if kind is Sabotage.PAGE else asks_of(cell, seed)
    clean = await check(cell, asks, references, models=models)
    say(f"clean    {clean.line}")
    if not (clean.equal and clean.handed_off):
        raise MeshFailed("the cell is not clean before it is sabotaged; run `baton verify` first")
    if kind is Sabotage.FALLBACK:
        spoilt = await check(cell, asks, references, models=models, spoiled=Spoiled(local="always"))
        noticed, wanted = spoilt.admitted - spoilt.remote, 1
    else:
        with tempfile.TemporaryDirectory(prefix="baton-verify-") as scratch:
            file = Path(scratch) / "fault.json"
            weights = open_weights(models.model, default_cache_folder(), product_path="pairs")
            fault = await asyncio.to_thread(_fault, kind, cell, asks, references[clean.roles.path], weights, seed)
            if kind is Sabotage.PAGE:
                repaired = await check(
                    cell, asks, references, models=models, spoiled=Spoiled(replace(fault, checks=True).write(file))
                )
                say(f"repaired {repaired.line}, {repaired.bytes_resent} sent again")
                if not (repaired.equal and repaired.handed_off and repaired.bytes_resent):
                    raise MeshFailed("with checks on, damaged pages must be found and sent again, and were not")
            spoilt = await check(cell, asks, references, models=models, spoiled=Spoiled(fault.write(file)))
        noticed, wanted = len(spoilt.differing), SEEDS if kind is Sabotage.PAGE else 1
    say(f"spoilt   {spoilt.line}")
    return Spoilt(clean, spoilt, noticed, wanted)


def _damaged_asks(seed: int) -> tuple[Ask, ...]:
    """One prompt for each seed, greedy and seeded in turn."""
    asks = []
    for number in range(SEEDS):
        random = Random(f"{seed} page {number}")
        prompt = tuple(random.randrange(256) for _ in range(random.randrange(40, 300)))
        temperature = number % 2 * 0.5
        asks.append(Ask(prompt, Sampling(temperature=temperature, seed=number, max_tokens=16, top_logprobs=3)))
    return tuple(asks)


def _fault(kind: Sabotage, cell: Cell, asks: tuple[Ask, ...], alone: Alone, weights: Weights, seed: int) -> Fault:
    if kind is Sabotage.BATCH:
        return Fault(split_product=True)
    damages = []
    for number, ask in enumerate(asks):
        first = alone.answer(ask)[0].token
        damages.append(choose_damage(weights, ask.prompt, first, page_tokens=_CELL.page, seed=seed * SEEDS + number))
    return Fault(damages=tuple(damages), checks=False)
