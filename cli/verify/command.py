"""`baton verify`: shows that one process and any mesh give the same bits, and that it would notice if they did not.

Exit status 0: everything is equal and was handed off. 1: something differs, or a sabotage was noticed. 2: it could not
be found out, or a sabotage went unnoticed."""

import contextlib
import traceback
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.output import emit_json, say
from cli.supervisor import MeshFailed
from cli.up import run_until_signal
from cli.verify.alone import PAGE_TOKENS, Alone, on_cpu
from cli.verify.asks import LONGEST, MOST_TOKENS, asks_of
from cli.verify.bodies import fingerprints, paths
from cli.verify.cells import every_cell, pairwise_cover
from cli.verify.checks import Checked, Models, check
from cli.verify.drafts import ensure_draft
from cli.verify.sabotage import Sabotage, Spoilt, sabotage
from engine.builtin import ensure_random
from engine.opened import open_model
from mesh.config import ConfigError, default_cache_folder

DIFFERENT, UNKNOWN = 1, 2

SEED = 7  # every run checks the same cells with the same prompts, unless asked otherwise


def verify(
    full: Annotated[bool, typer.Option("--full", help="Every combination of settings: an hour.")] = False,
    spoil: Annotated[
        Sabotage | None, typer.Option("--sabotage", help="Do one thing wrong; it must be noticed.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Draws the cells and the prompts.")] = SEED,
    json: Annotated[bool, typer.Option("--json", help="End with one JSON object on stdout.")] = False,
) -> None:
    """Compare every token and logprob bit of real meshes with those of the engine alone.

    Starts a mesh for each cell of a pairwise cover over transport, chunk, page size, batch, workers, prefix cache,
    speculation, product path and kernel body, and asks it hundreds of prompts. Prefill, decode and the engine alone run
    different bodies; matrix tiles are emulated where the processor has none. Five minutes on two cores.

    Example: baton verify --json

    Example: baton verify --sabotage page   (must end with status 1)
    """
    status = [UNKNOWN]
    with anything_else_is_unknown():
        run_until_signal(_verify(full, spoil, seed, json, status))
    raise SystemExit(status[0])


async def _verify(full: bool, spoil: Sabotage | None, seed: int, json: bool, status: list[int]) -> None:
    cache = default_cache_folder()
    folder = ensure_random(cache)
    models = Models(folder, ensure_draft(folder, cache))
    prints = fingerprints()
    for path, of_bodies in prints.items():
        say(f"{path:<5} {', '.join(f'{body} {fingerprint}' for body, fingerprint in of_bodies.items())}")
    with ExitStack() as stack:
        references = {path: _open(stack, folder, cache, path) for path in prints}
        if spoil is not None:
            status[0] = judge_sabotage(await sabotage(spoil, references, models=models, seed=seed), spoil, json=json)
            return
        done = []
        cells = every_cell(paths()) if full else pairwise_cover(seed, paths())
        for number, cell in enumerate(cells, 1):
            done.append(await check(cell, asks_of(cell, seed), references, models=models))
            say(f"{number:>3}/{len(cells)}  {done[-1].line}")
        status[0] = judge(done, prints, json=json)


def _open(stack: ExitStack, folder: Path, cache: Path, path: str) -> Alone:
    model = open_model(folder, cache, product_path=path, page_tokens=PAGE_TOKENS)
    alone = on_cpu(model, most_slots=LONGEST + MOST_TOKENS)
    stack.callback(alone.close)
    return alone


def judge(done: list[Checked], prints: Mapping[str, Mapping[str, str]], *, json: bool) -> int:
    one_each = all(len(set(of_bodies.values())) == 1 for of_bodies in prints.values())
    report = summary(done) | {"fingerprints": prints, "one_fingerprint_per_path": one_each}
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
