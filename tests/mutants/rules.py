"""Every rule that a test can break, with the mutants that replace its guards in the rooms that keep it.

`apply("checksum", monkeypatch.setattr)` breaks a rule for one test, `apply("checksum", setattr)` for a process."""

from importlib import import_module
from importlib.util import find_spec

from tests.mutants.decode import Mutant, Patch

ROOMS = tuple(room for room in ("decode", "prefill", "gateway", "kvtransfer") if find_spec(f"tests.mutants.{room}"))


def _merged() -> dict[str, list[Mutant]]:
    rules: dict[str, list[Mutant]] = {}
    for room in ROOMS:
        for rule, mutant in import_module(f"tests.mutants.{room}").MUTANTS.items():
            rules.setdefault(rule, []).append(mutant)
    return rules


RULES = _merged()


def apply(rule: str, patch: Patch) -> None:
    """Break one rule in every room that keeps it."""
    for mutant in RULES[rule]:
        mutant(patch)
