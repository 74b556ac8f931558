"""Slices add up, over runs that end early, fail or are killed, and stale ones count nothing."""

import json
from pathlib import Path

import pytest

from tests.proofs.proof import ProofSlice, SliceVerdict
from tests.proofs.proofs import hidden_together
from tests.proofs.ranges import total
from tests.unit.proofs.worlds import proof, world


def test_slices_add_up_and_no_number_is_run_twice(tmp_path: Path) -> None:
    found = world(tmp_path)
    while found.rounds().run(3 * 60 * 1.25):
        pass
    assert found.report()["done"] == 100 and found.report()["failed"] == 0
    assert total([part for _, part in found.ran]) == sum(end - first for _, (first, end) in found.ran) == 100
    assert found.rounds().run(1e9) == 0


def test_a_kill_costs_the_slice_under_way_and_nothing_else(tmp_path: Path) -> None:
    found = world(tmp_path)
    found.kill_at = 3
    with pytest.raises(KeyboardInterrupt):
        found.rounds().run(1e9)
    assert found.report()["done"] == 30
    found.kill_at = 10**9
    found.rounds().run(1e9)
    assert found.report()["done"] == 100 and len(found.ran) == len(set(found.ran)) == 10


def test_the_run_ends_within_its_minutes(tmp_path: Path) -> None:
    found = world(tmp_path)
    found.rounds().run(200.0)
    assert 0 < found.time <= 200 and 10 <= found.report()["done"] < 40


def test_a_slice_is_made_smaller_for_the_rest_of_the_time(tmp_path: Path) -> None:
    found = world(tmp_path)
    assert found.rounds().run(40.0) == 1
    assert found.ran == [("seeds", (0, 5))] and found.report()["done"] == 5
    assert found.rounds().run(10.0) == 0  # fewer than its least numbers fit


def test_a_slice_that_is_cut_counts_nothing_and_is_tried_smaller(tmp_path: Path) -> None:
    found = world(tmp_path)
    found.pace = 80.0
    assert found.rounds().run(700.0) == 0
    assert found.ran == [("seeds", (0, 10))] and found.report()["done"] == 0
    found.rounds().run(1e9)
    sizes = [end - first for _, (first, end) in found.ran]
    assert sizes[1] == 10 and max(sizes[2:]) < 7 and found.report()["done"] == 100


def test_the_smallest_share_comes_next(tmp_path: Path) -> None:
    found = world(tmp_path, proof("small", wanted=20), proof("large", wanted=1000))
    found.rounds().run(6 * 60 * 1.25)
    assert [name for name, _ in found.ran[:5]] == ["small", "large", "large", "large", "large"]


def test_a_changed_source_makes_the_amount_history(tmp_path: Path) -> None:
    found = world(tmp_path)
    found.rounds().run(80.0)
    found.hashes = {"seeds": "other sources"}
    row = found.report()
    assert row["stale"] and row["done"] == 0 and row["earlier"]["done"] == 10
    found.rounds().run(80.0)
    assert found.ran == [("seeds", (0, 10))] * 2 and not found.report()["stale"] and found.report()["done"] == 10
    (kept,) = json.loads((tmp_path / "proofs.json").read_text())["proofs"]["seeds"]["history"]
    assert (kept["sources"], kept["done"]) == ("these sources", 10)


def test_a_source_that_changes_while_the_slice_runs_makes_it_count_nothing(tmp_path: Path) -> None:
    found = world(tmp_path)
    rounds = found.rounds()
    rounds.sources_now = lambda each: "other sources"
    assert rounds.run(1e9) == 0 and found.report()["done"] == 0 and len(found.ran) == 1


def test_a_failure_keeps_its_seed_and_its_story(tmp_path: Path) -> None:
    found = world(tmp_path)
    found.answer = lambda name, part: {"failed": [13]} if part.first == 10 else {}
    found.rounds().run(1e9)
    row = found.report()
    assert (row["done"], row["failed"]) == (99, 1)
    (failure,) = row["failures"]
    assert (failure["first"], failure["end"], failure["story"]) == (13, 14, "its last words")
    log = (tmp_path / "failures" / failure["file"]).read_text()
    assert "seeds 10 10" in log and "its last words" in log
    ran = len(found.ran)
    assert found.rounds().run(1e9) == 0 and len(found.ran) == ran  # what failed is not run again by itself


def test_a_failure_stays_one_until_its_numbers_have_passed(tmp_path: Path) -> None:
    found = world(tmp_path)
    found.answer = lambda name, part: {"status": int(part.first == 10)}
    found.rounds().run(1e9)
    assert (found.report()["done"], found.report()["failed"]) == (90, 1)
    for answer, done, failed in ((found.answer, 90, 1), (lambda name, part: {}, 100, 0)):
        found.answer, ledger = answer, found.ledger
        ledger.entries["seeds"].retry()
        found.rounds(ledger).run(1e9)
        assert found.ran[-1] == ("seeds", (10, 20))
        assert (found.report()["done"], found.report()["failed"]) == (done, failed)
    assert len(found.report()["failures"]) == 2  # they are kept


def test_a_proof_that_cannot_run_here_counts_nothing_and_says_why(tmp_path: Path) -> None:
    late = proof("late", verdict=lambda part, status, report: SliceVerdict(cannot_run="no kernel"))
    found = world(tmp_path, proof("storm", obstacle=lambda: "no nftables"), late, proof())
    ledger = found.ledger
    found.rounds(ledger).run(1e9)
    assert ledger.unable == {"storm": "no nftables", "late": "no kernel"}
    assert "storm: cannot run here: no nftables" in found.said
    assert [found.report(name)["done"] for name in ("storm", "late", "seeds")] == [0, 0, 100]


def test_a_number_that_takes_several_slices_goes_on_where_it_was(tmp_path: Path) -> None:
    given = list[dict[str, int]]()

    def command(part: object, progress: dict[str, int]) -> list[str]:
        given.append(progress)
        return ["seeds", "0", "1"]

    def verdict(part: object, status: int, report: object) -> SliceVerdict:
        return SliceVerdict(progress={"0": 40}) if len(given) == 1 else SliceVerdict(passed=((0, 1),), progress={})

    found = world(tmp_path, proof(wanted=1, slice=1, least=1, command=command, verdict=verdict))
    found.rounds().run(1e9)
    assert given == [{}, {"0": 40}] and found.report()["done"] == 1


def test_a_number_that_many_slices_begin_takes_no_turn_of_the_others(tmp_path: Path) -> None:
    def verdict(part: ProofSlice, status: int, report: object) -> SliceVerdict:
        rest = ((max(1, part.first), part.end),)
        return SliceVerdict(passed=rest, progress={"0": 1}) if part.first == 0 else SliceVerdict(passed=rest)

    found = world(tmp_path, proof("hard", wanted=30, verdict=verdict), proof("easy", wanted=30))
    found.rounds().run(6 * 60 * 1.25)
    assert found.ran[:6] == [(name, part) for part in ((0, 10), (10, 20), (20, 30)) for name in ("hard", "easy")]
    assert found.ran[6] == ("hard", (0, 1))  # when no others are left


def test_every_kind_of_machine_is_named(tmp_path: Path) -> None:
    found = world(tmp_path)
    found.rounds().run(80.0)
    found.machine = "another"
    found.rounds().run(160.0)
    assert found.report()["machine"] == "another, a machine"


def test_slices_are_judged_together_too(tmp_path: Path) -> None:
    found = world(
        tmp_path,
        proof(figures=lambda report: {"sum": 60}, together=lambda all: "too much" if len(all) > 1 else ""),
    )
    found.rounds().run(80.0)
    assert found.report()["failed"] == 0
    found.rounds().run(1e9)
    assert found.report()["failed"] == 1 and found.report()["problem"] == "too much"


def test_errors_of_chance_cancel_out_over_the_slices_and_a_leak_does_not() -> None:
    def slices(*aucs: float) -> list[dict[str, float]]:
        return [{"probes": 250, "auc_time": each, "auc_cached": 0.5} for each in aucs]

    assert hidden_together(slices(0.6, 0.41) * 4) == ""
    assert "0.560" in hidden_together(slices(0.56) * 8)
    assert hidden_together(slices(0.56)) == ""  # 250 probes cannot tell
