"""`baton verify`: shows that one process and any mesh give the same bits, and that it would notice if they did not.

Exit status 0: everything is equal and was handed off. 1: something differs, or a sabotage was noticed. 2: it could not
be found out, or a sabotage went unnoticed."""

import contextlib
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from enum import Enum
from typing import Annotated, Any

import typer

from cli.output import emit_json, say
from cli.supervisor import MeshFailed
from cli.up import run_until_signal
from cli.verify.asks import asks_of
from cli.verify.cells import every_cell, pairwise_cover
from cli.verify.checks import Checked, Models, check_all
from cli.verify.drafts import ensure_draft
from cli.verify.parts import Part, on_this_cpu, on_this_gpu
from cli.verify.sabotage import Sabotage, Spoilt, sabotage
from engine.builtin import ensure_random
from engine.cuda import device as gpu_device
from mesh.config import ConfigError, default_cache_folder

DIFFERENT, UNKNOWN = 1, 2

SEED = 7  # every run checks the same cells with the same prompts, unless asked otherwise


class Devices(Enum):
    CPU = "cpu"
    CUDA = "cuda"
    ALL = "all"


def verify(
    full: Annotated[bool, typer.Option("--full", help="Every combination of settings: an hour.")] = False,
    spoil: Annotated[
        Sabotage | None, typer.Option("--sabotage", help="Do one thing wrong; it must be noticed.")
    ] = None,
    device: Annotated[Devices, typer.Option(help="Whose cells to check; all: those that this machine has.")] = (
        Devices.ALL
    ),
    seed: Annotated[int, typer.Option(help="Draws the cells and the prompts.")] = SEED,
    json: Annotated[bool, typer.Option("--json", help="End with one JSON object on stdout.")] = False,
) -> None:
    """Compare every token and logprob bit of real meshes with those of the engine alone.

    Starts a mesh for each cell of a pairwise cover over transport, chunk, page size, batch, workers, prefix cache,
    speculation, product path and kernel body, and asks it hundreds of prompts. Prefill, decode and the engine alone run
    different bodies; matrix tiles are emulated where the processor has none. Five minutes on two cores. A GPU has a
    cover of its own, whose bodies are graph and eager; what this machine cannot check is left out and named.

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
        if spoil is not None:
            results = [one for part in parts for one in await sabotage(spoil, part, models=models, seed=seed)]
            status[0] = judge_sabotage(results, spoil, json=json)
            return
        done = list[Checked]()
        covers = [every_cell(part.factors) if full else pairwise_cover(seed, part.factors) for part in parts]
        for part, cells in zip(parts, covers, strict=True):
            asked = [(cell, asks_of(cell, seed)) for cell in cells]
            async for _, one in check_all(asked, part.references, models=models, abreast=part.abreast):
                if isinstance(one, Exception):
                    raise one
                done.append(one)
                say(f"{len(done):>3}/{sum(map(len, covers))}  {one.line}")
        prints = {path: of_bodies for part in parts for path, of_bodies in part.fingerprints.items()}
        status[0] = judge(done, prints, left_out=left_out, json=json)


def _parts(stack: ExitStack, models: Models, devices: Devices) -> list[Part]:
    """Of the devices that were asked for; of a GPU that is only a part of `all`, if there is one."""
    parts = [] if devices is Devices.CUDA else [on_this_cpu(models)]
    if devices is Devices.CUDA or (devices is Devices.ALL and not absent(devices)):
        parts.append(on_this_gpu(models))
    for part in parts:
        for alone in part.references.values():
            stack.callback(alone.close)
    return parts


def absent(devices: Devices) -> list[str]:
    """Why there will be no cells on a GPU, where there could be."""
    why_not = gpu_device.find_gpu().why_not if devices is Devices.ALL else ""
    return [f"device cuda: {why_not}"] if why_not else []


def judge(
    done: list[Checked], prints: Mapping[str, Mapping[str, str]], *, json: bool, left_out: Sequence[str] = ()
) -> int:
    one_each = all(len(set(of_bodies.values())) == 1 for of_bodies in prints.values())
    report = summary(done) | {"fingerprints": prints, "one_fingerprint_per_path": one_each, "left_out": list(left_out)}
    good = one_each and all(one.equal and one.handed_off and one.speculated for one in done)
    if json:
        emit_json(report)
    else:
        print(
            f"{report['prompts']} prompts in {report['cells']} cells: {report['token_mismatches']} with other tokens, "
            f"{report['logprob_mismatches']} with other logprob bits; {report['remote_share']:.0%} prefilled remotely, "
            f"{report['bytes_moved']} bytes moved of {report['bytes_expected']} expected; "
            f"drafts accepted: {', '.join(f'{k} {a} of {d}' for k, (a, d) in report['drafts'].items())}"
        )
    return 0 if good else DIFFERENT


def judge_sabotage(results: list[Spoilt], kind: Sabotage, *, json: bool) -> int:
    """Each must be noticed: one for every path that the sabotage is about."""
    least = min(results, key=lambda result: result.noticed - result.wanted)
    about = {"sabotage": kind.value, "noticed": least.noticed, "noticed_of": least.wanted}
    of_paths = {result.spoilt.roles.path: result.noticed for result in results}
    if json:
        spoilt, clean = ([getattr(result, side) for result in results] for side in ("spoilt", "clean"))
        emit_json(summary(spoilt) | about | {"noticed_of_paths": of_paths, "clean": summary(clean)})
    for result in results:
        path = result.spoilt.roles.path
        say(f"sabotage {kind.value}, {path}: {result.noticed} noticed, at least {result.wanted} had to be")
    return DIFFERENT if least.noticed >= least.wanted else UNKNOWN


def summary(done: list[Checked]) -> dict[str, Any]:
    admitted = sum(one.admitted for one in done)
    numerics = {one.roles.path: _numerics(one) for one in done}
    return {
        "cells": len(done),
        "devices": sorted({one.cell.device for one in done}),
        "prompts": sum(one.prompts for one in done),
        "token_mismatches": sum(one.token_mismatches for one in done),
        "logprob_mismatches": sum(one.logprob_mismatches for one in done),
        "remote_share": sum(one.remote for one in done) / admitted if admitted else 0.0,
        "bytes_moved": sum(one.bytes_moved for one in done),
        "bytes_expected": sum(one.bytes_expected for one in done),
        "drafts": {kind: _drafts(done, kind) for kind in ("draft", "lookup")},
        "drafted": sum(one.drafted for one in done),
        "accepted": sum(one.accepted for one in done),
        "numerics": numerics.get("pairs") or next(iter(numerics.values())),
        "numerics_of_paths": list(numerics.values()),
        "seconds": round(sum(one.seconds for one in done), 1),
        "rows": [one.row() for one in done],
    }


def _drafts(done: list[Checked], kind: str) -> tuple[int, int]:
    """Accepted, and looked at."""
    cells = [one for one in done if one.cell.speculation == kind]
    return sum(one.accepted for one in cells), sum(one.drafted for one in cells)


def _numerics(one: Checked) -> dict[str, str]:
    return {"path": one.roles.path, "class": one.numerics[0], "fingerprint": one.numerics[1]}


@contextlib.contextmanager
def anything_else_is_unknown() -> Iterator[None]:
    """Status 1 must mean a difference and nothing else."""
    try:
        yield
    except (MeshFailed, ConfigError) as error:
        say(f"baton: {error}", style="red")
        raise SystemExit(UNKNOWN) from None
    except Exception:
        say(traceback.format_exc(), style="red")
        raise SystemExit(UNKNOWN) from None
