"""Section `verify`: the cells of `baton verify --device cuda`, whole meshes against the engine alone, bit by bit.

Each cell's figure is shown as soon as the cell is done, so a run that is cut off shows what it has checked. The dry run
checks one cell on the CPU, which shows that the code runs."""

import asyncio
from contextlib import ExitStack

from bench.gpu.clock import Clock
from bench.gpu.figures import Figure, note, show
from cli.verify.bodies import bodies
from cli.verify.cells import Cell, pairwise_cover
from cli.verify.checks import Checked, Models, check_all
from cli.verify.command import SEED
from cli.verify.devices import on_this_cpu, on_this_gpu
from cli.verify.drafts import ensure_draft
from cli.verify.requests import requests_of
from engine.builtin import ensure_random
from mesh.config.common_config import default_cache_folder


def measure(clock: Clock) -> None:
    asyncio.run(_check(real=clock.real))


async def _check(*, real: bool) -> None:
    cache = default_cache_folder()
    folder = ensure_random(cache)
    models, done = Models(folder, ensure_draft(folder, cache)), list[Checked]()
    with ExitStack() as stack:
        part = on_this_gpu(models) if real else on_this_cpu(models)
        for reference in part.references.values():
            stack.callback(reference.close)
        for line in part.left_out:
            note(f"left out: {line}")
        cells = pairwise_cover(SEED, part.factors) if real else (_dry(),)
        drawn = [(cell, requests_of(cell, SEED)) for cell in cells]
        async for cell, one in check_all(drawn, part.references, models=models, abreast=part.abreast):
            if isinstance(one, Exception):
                note(f"{cell} FAILED: {one}")
                continue
            done.append(one)
            name = f"answers that differ: {str(cell).strip()}"
            show(Figure(name, len(one.differing), f"of {one.prompts}", at_most=0))
            if not (one.handed_off and one.speculated):
                note(one.line)
    show(Figure("cells with other bytes than landed, local prefill or without drafts", _odd(done), "", at_most=0))
    show(Figure("cells", len(done), f"of {len(cells)}", at_least=len(cells)))
    show(Figure("prompts", sum(one.prompts for one in done), "in them"))
    show(Figure("mismatches", sum(len(one.differing) for one in done), "tokens or logprob bits", at_most=0))
    show(Figure("largest batch of a decode step", max((one.largest_batch for one in done), default=0), "requests"))


def _odd(done: list[Checked]) -> int:
    return sum(not (one.handed_off and one.speculated) for one in done)


def _dry() -> Cell:
    path = f"pairs:{bodies('pairs')[-1]}"
    return Cell(transport="shm", chunk=512, page=16, batch=1, workers=1, cache=False, speculation="off", path=path)
