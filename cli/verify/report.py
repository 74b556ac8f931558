"""The report of `baton verify` about its checked cells, and the exit status that follows from it.

Exit status 0: everything is equal and was handed off. 1: something differs, or a sabotage was noticed. 2: the question
could not be answered, or a sabotage went unnoticed."""

from collections.abc import Mapping, Sequence
from typing import Any

from cli.output import emit_json, say
from cli.verify.checks import Checked
from cli.verify.sabotage import Sabotage, Sabotaged

DIFFERENT, UNKNOWN = 1, 2


def judge(
    done: list[Checked], prints: Mapping[str, Mapping[str, str]], *, json: bool, left_out: Sequence[str] = ()
) -> int:
    one_each = all(len(set(of_bodies.values())) == 1 for of_bodies in prints.values())
    report = summary(done) | {"fingerprints": prints, "one_fingerprint_per_path": one_each, "left_out": list(left_out)}
    good = one_each and all(checked.equal and checked.handed_off and checked.speculated for checked in done)
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


def judge_sabotage(results: list[Sabotaged], kind: Sabotage, *, json: bool) -> int:
    """The sabotage must be noticed on every product path that it concerns."""
    least = min(results, key=lambda result: result.noticed - result.wanted)
    about = {"sabotage": kind.value, "noticed": least.noticed, "noticed_of": least.wanted}
    of_paths = {result.spoilt.roles.path: result.noticed for result in results}
    if json:
        spoilt, clean = ([getattr(result, side) for result in results] for side in ("spoilt", "clean"))
        emit_json(summary(spoilt) | about | {"noticed_of_paths": of_paths, "clean": summary(clean)})
    for result in results:
        path = result.spoilt.roles.path
        say(f"sabotage {kind.value}, {path}: {result.noticed} noticed, {result.wanted} wanted at least")
    return DIFFERENT if least.noticed >= least.wanted else UNKNOWN


def summary(done: list[Checked]) -> dict[str, Any]:
    admitted = sum(checked.admitted for checked in done)
    numerics = {checked.roles.path: _numerics(checked) for checked in done}
    return {
        "cells": len(done),
        "devices": sorted({checked.cell.device for checked in done}),
        "prompts": sum(checked.prompts for checked in done),
        "token_mismatches": sum(checked.token_mismatches for checked in done),
        "logprob_mismatches": sum(checked.logprob_mismatches for checked in done),
        "remote_share": sum(checked.remote for checked in done) / admitted if admitted else 0.0,
        "bytes_moved": sum(checked.bytes_moved for checked in done),
        "bytes_expected": sum(checked.bytes_expected for checked in done),
        "drafts": {kind: _drafts(done, kind) for kind in ("draft", "lookup")},
        "drafted": sum(checked.drafted for checked in done),
        "accepted": sum(checked.accepted for checked in done),
        "numerics": numerics.get("pairs") or next(iter(numerics.values())),
        "numerics_of_paths": list(numerics.values()),
        "seconds": round(sum(checked.seconds for checked in done), 1),
        "rows": [checked.row() for checked in done],
    }


def _drafts(done: list[Checked], kind: str) -> tuple[int, int]:
    """(accepted, verified) drafted tokens of the cells with this kind of speculation."""
    cells = [checked for checked in done if checked.cell.speculation == kind]
    return sum(checked.accepted for checked in cells), sum(checked.drafted for checked in cells)


def _numerics(checked: Checked) -> dict[str, str]:
    return {"path": checked.roles.path, "class": checked.numerics[0], "fingerprint": checked.numerics[1]}
