"""What the proofs are: their commands exist, they name all sources that they run, and the manual's table is theirs."""

import ast
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.proofs import mutants
from tests.proofs.__main__ import PAGE, RESULTS, loaded
from tests.proofs.mutants import NAMES, judge
from tests.proofs.proof import Proof, ProofSlice
from tests.proofs.proofs import PROOFS, begun, fuzzed, noticed, simulated, stormed
from tests.proofs.sources import ROOT, SourcesUnknown, covered, source_hasher, tracked
from tests.proofs.table import drawn, redrawn
from tests.unit.sources import nodes

WANTED = {"sim": 20_000, "fuzz": 10_000_000, "chaos": 30, "cancels": 10_000, "corruptions": 1_000}
WANTED |= {"timing": 2_000, "replay": 770, "mutants": len(NAMES)}


def test_every_long_proof_is_there_with_its_amount() -> None:
    assert {name: proof.wanted for name, proof in PROOFS.items()} == WANTED


def test_the_table_of_the_manual_is_drawn_from_the_file() -> None:
    page = PAGE.read_text()
    assert RESULTS.is_file() and redrawn(page, drawn(loaded(), PROOFS)) == page, "make proofs ARGS=--draw"


@cache
def imported(path: str) -> frozenset[str]:
    """First-party files that a file names in its imports, wherever they stand in it."""
    found = set[str]()
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
    roots = ("", "kernels/", "protos/")
    files = {
        f"{root}{name.replace('.', '/')}{end}" for name in found for root in roots for end in (".py", "/__init__.py")
    }
    return frozenset(each for each in files if (ROOT / each).is_file())


@pytest.mark.parametrize("proof", PROOFS.values(), ids=list(PROOFS))
def test_a_proof_covers_every_file_that_its_runner_imports(proof: Proof) -> None:
    module = proof.command(ProofSlice(0, 1), {})[2].replace(".", "/")
    start = f"{module}.py" if (ROOT / f"{module}.py").is_file() else f"{module}/__main__.py"
    assert (ROOT / start).is_file()
    seen, left = set[str](), [start]
    while left:
        path = left.pop()
        if path not in seen:
            seen.add(path)
            left += imported(path)
    assert sorted(seen - set(covered(sorted(seen), proof.covers))) == []


def test_a_hash_follows_content_names_and_command(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", *words], cwd=tmp_path, check=True, capture_output=True)

    with pytest.raises(SourcesUnknown):
        tracked(tmp_path)
    git("init", "-q")
    for name in ("room/a.py", "room/b.py", "roommate/c.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    git("add", ".")
    first = source_hasher(tmp_path)(("room",), "run")
    assert source_hasher(tmp_path)(("room",), "run") == first != source_hasher(tmp_path)(("room",), "walk")
    (tmp_path / "roommate/c.py").write_text("changed")
    (tmp_path / "room/untracked.py").write_text("new")
    assert source_hasher(tmp_path)(("room",), "run") == first
    (tmp_path / "room/b.py").write_text("changed")
    second = source_hasher(tmp_path)(("room",), "run")
    (tmp_path / "room/b.py").unlink()
    assert len({first, second, source_hasher(tmp_path)(("room",), "run")}) == 3


def test_a_seed_that_fails_is_the_only_one_that_does() -> None:
    verdict = simulated(ProofSlice(100, 200), 1, {"failed": [150, 199]})
    assert verdict.passed == ((100, 150), (151, 199)) and verdict.failed == ((150, 151), (199, 200))
    assert simulated(ProofSlice(100, 200), -9, {}).failed == ((100, 200),)


def test_a_storm_without_the_kernel_is_not_the_storm() -> None:
    lacking = {"unavailable": {"drop": "nft is missing", "mute": "nft is missing"}}
    assert stormed(ProofSlice(0, 2), 0, lacking).cannot_run == "nft is missing"
    assert stormed(ProofSlice(0, 2), 1, lacking).failed == ((0, 2),)
    assert stormed(ProofSlice(0, 2), 0, {"unavailable": {}}).passed == ((0, 2),)


def test_fuzzing_counts_its_failures() -> None:
    targets = {"targets": {"a": {"failures": 2}, "b": {"failures": 1}}}
    assert fuzzed(ProofSlice(0, 9), 1, targets).failures == 3 and fuzzed(ProofSlice(0, 9), 99, {}).failures == 1
    assert fuzzed(ProofSlice(0, 9), 0, targets).passed == ((0, 9),)


def test_mutants_count_as_far_as_the_time_went() -> None:
    verdict = noticed(ProofSlice(4, 12), 0, {"judged": [4, 5, 7], "missed": [], "tried": {"6": 55}})
    assert verdict.passed == ((4, 6), (7, 8)) and verdict.progress == {"6": 55} and not verdict.failed
    assert begun(ProofSlice(4, 12), {"6": 55, "30": 7}) == '{"6": 55}'
    missed = noticed(ProofSlice(4, 12), 1, {"judged": [4, 5, 6], "missed": [5], "tried": {}})
    assert missed.passed == ((4, 5), (6, 7)) and missed.failed == ((5, 6),) and missed.progress == {}
    assert noticed(ProofSlice(4, 12), -9, {}).failed == ((4, 12),)


def test_a_removed_protection_of_either_kind_is_noticed() -> None:
    for name in ("sim: fence", "model: position"):
        number = NAMES.index(name)
        assert judge(number, 1, tried={}) == {"judged": [number], "missed": [], "tried": {}}


def test_mutants_stop_when_their_time_is_up() -> None:
    first = NAMES.index("model: position")
    assert judge(first, 3, tried={}, seconds=0.0) == {"judged": [first], "missed": [], "tried": {}}


def test_a_mutant_that_seeds_survive_keeps_no_other_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    def simulated_until(name: str, tried: int, end: float) -> tuple[bool | None, int]:
        return (None, tried + 9) if name == mutants.SIMULATED[0] else (True, 1)

    monkeypatch.setattr(mutants, "simulate", simulated_until)
    assert judge(0, 3, tried={0: 20}) == {"judged": [1, 2], "missed": [], "tried": {0: 29}}
