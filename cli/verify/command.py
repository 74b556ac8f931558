"""`baton verify`: shows that one process and any mesh give the same bits, and that it would notice if they did not.

Each device has its part: cells, and references to compare their answers with. `cli/verify/report.py` explains the exit
status."""

import contextlib
import traceback
from collections.abc import Iterator
from contextlib import ExitStack
from enum import Enum
from typing import Annotated

import typer

from cli.errors import MeshFailed
from cli.local_mesh.up import run_until_signal
from cli.output import say
from cli.verify.cells import every_cell, pairwise_cover
from cli.verify.checks import Checked, Models, check_all
from cli.verify.devices import DevicePart, on_this_cpu, on_this_gpu
from cli.verify.drafts import ensure_draft
from cli.verify.report import UNKNOWN, judge, judge_sabotage
from cli.verify.requests import requests_of
from cli.verify.sabotage import Sabotage, load_saboteur
from engine.builtin import ensure_random
from engine.cuda import device as gpu_device
from mesh.config.common_config import default_cache_folder
from mesh.config.config_checks import ConfigError

SEED = 7  # without --seed every run checks the same cells with the same prompts


class Devices(Enum):
    CPU = "cpu"
    CUDA = "cuda"
    ALL = "all"


def verify(
    full: Annotated[bool, typer.Option("--full", help="Check every combination of settings: about an hour.")] = False,
    spoil: Annotated[
        Sabotage | None,
        typer.Option(
            "--sabotage",
            help="Break one thing on purpose, to show that the check notices it (needs a checkout of Baton).",
        ),
    ] = None,
    device: Annotated[Devices, typer.Option(help="Which devices to check; all: those of this machine.")] = (
        Devices.ALL
    ),
    seed: Annotated[int, typer.Option(help="Seed of the drawn cells and prompts.")] = SEED,
    json: Annotated[bool, typer.Option("--json", help="End with one JSON object on stdout.")] = False,
) -> None:
    """Show that any mesh computes the same tokens and logprob bits as one process.

    A cell is a combination of transport, chunk, page sizes of both tiers,
    batch, workers, prefix cache, speculation, kernel, and bits of weights and
    pages; some forty cells cover all pairs of settings. For each cell the command starts a mesh of real processes,
    sends it prompts and compares every answer with that of the engine alone
    in this process. It takes ten minutes on two cores. A GPU has cells of
    its own; the output names what this machine cannot check.

    Exit status: 0 everything is equal; 1 something differs, or a sabotage
    was noticed; 2 the check could not be made.

    Example: baton verify --json

    Example: baton verify --device cuda

    Example: baton verify --sabotage page   (must end with status 1)
    """
    status = [UNKNOWN]
    with anything_else_is_unknown():
        run_until_signal(_verify(full, spoil, device, seed, json, status))
    raise SystemExit(status[0])


async def _verify(
    full: bool, spoil: Sabotage | None, devices: Devices, seed: int, json: bool, status: list[int]
) -> None:
    saboteur = load_saboteur() if spoil is not None else None
    cache = default_cache_folder()
    folder = ensure_random(cache)
    models = Models(folder, ensure_draft(folder, cache))
    with ExitStack() as stack:
        parts = _parts(stack, models, devices)
        for part in parts:
            for path, of_bodies in part.fingerprints.items():
                say(f"{path:<5} {', '.join(f'{body} {fingerprint}' for body, fingerprint in of_bodies.items())}")
        left_out = [line for part in parts for line in part.left_out] + absent(devices)
        for line in left_out:
            say(f"left out: {line}")
        if spoil is not None and saboteur is not None:
            results = [result for part in parts for result in await saboteur(spoil, part, models, seed)]
            status[0] = judge_sabotage(results, spoil, json=json)
            return
        done = list[Checked]()
        covers = [every_cell(part.factors) if full else pairwise_cover(seed, part.factors) for part in parts]
        for part, cells in zip(parts, covers, strict=True):
            drawn = [(cell, requests_of(cell, seed)) for cell in cells]
            async for _, checked in check_all(drawn, part.references, models=models, abreast=part.abreast):
                if isinstance(checked, Exception):
                    raise checked
                done.append(checked)
                say(f"{len(done):>3}/{sum(map(len, covers))}  {checked.line}")
        prints = {path: of_bodies for part in parts for path, of_bodies in part.fingerprints.items()}
        status[0] = judge(done, prints, left_out=left_out, json=json)


def _parts(stack: ExitStack, models: Models, devices: Devices) -> list[DevicePart]:
    """The parts of the chosen devices; `all` includes a GPU only where there is one. The stack closes their
    references."""
    parts = [] if devices is Devices.CUDA else [on_this_cpu(models)]
    if devices is Devices.CUDA or (devices is Devices.ALL and not absent(devices)):
        parts.append(on_this_gpu(models))
    for part in parts:
        for reference in part.references.values():
            stack.callback(reference.close)
    return parts


def absent(devices: Devices) -> list[str]:
    """Why `all` checks no cells on a GPU; empty when it does."""
    why_not = gpu_device.find_gpu().why_not if devices is Devices.ALL else ""
    return [f"device cuda: {why_not}"] if why_not else []


@contextlib.contextmanager
def anything_else_is_unknown() -> Iterator[None]:
    """Turn every error into status 2: status 1 must mean a difference and nothing else."""
    try:
        yield
    except (MeshFailed, ConfigError) as error:
        say(f"baton: {error}", style="red")
        raise SystemExit(UNKNOWN) from None
    except Exception:
        say(traceback.format_exc(), style="red")
        raise SystemExit(UNKNOWN) from None
