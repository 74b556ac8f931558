"""The GPU run loses nothing that was measured, and says plainly what missed, failed or was cut off."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.gpu import room
from bench.gpu.figures import Figure, Section, as_json, markdown, read_lines
from bench.gpu.run import PYTEST, SectionRun, beside, carry_out

ROOT = Path(__file__).parents[3]
ABOUT = {"date": "2026-01-02", "gpu": "a GPU, 80 GiB", "software": "torch 2", "limits": "nothing", "real": True}


def printing(*figures: Figure) -> str:
    """A program that shows these figures as a section does."""
    shown = "; ".join(f"show(Figure({one.name!r}, {one.value}, {one.unit!r}))" for one in figures)
    return f"from bench.gpu.figures import Figure, show; {shown}"


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "type[Program]":
    Program.folder = tmp_path
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    return Program


class Program:
    folder: Path

    @classmethod
    def work(cls, text: str, seconds: float = 20.0) -> SectionRun:
        (cls.folder / "made_up.py").write_text(text)
        return SectionRun("made up", ("made_up",), seconds)


def test_a_target_is_met_or_missed_from_its_own_side() -> None:
    assert [Figure("x", value, "", at_least=2.0).missed for value in (1.9, 2.0)] == [True, False]
    assert [Figure("x", value, "", at_most=2.0).missed for value in (2.0, 2.1)] == [False, True]
    assert not Figure("x", 0.0, "").missed


def test_lines_of_others_between_the_figures_are_passed_over() -> None:
    shown = json.dumps({"figure": {"name": "a", "value": 1.0, "unit": "ms", "at_least": None, "at_most": None}})
    figures, notes = read_lines(["loading", "{broken", "3", shown, '{"note": "no peer"}', '{"other": 1}'])
    assert figures == (Figure("a", 1.0, "ms"),) and notes == ("no peer",)


def test_the_table_names_what_missed_and_what_did_not_end() -> None:
    good = Section("kernels", (Figure("decode", 0.9, "of copy bandwidth", at_least=0.85),), ("no peer",), 1.0)
    bad = Section("mesh", (Figure("exposed", 12.0, "ms", at_most=10.0),), (), 2.0, "cut off after 2 s")
    text, report = markdown(ABOUT, [good, bad]), as_json(ABOUT, [good, bad])
    assert "| decode | 0.9 | of copy bandwidth | ≥ 0.85 | met |" in text and "* no peer" in text
    assert "| exposed | 12 | ms | ≤ 10 | missed |" in text and "Did not end: cut off after 2 s" in text
    assert report["failed"] == ["mesh"] and report["missed"] == ["mesh: exposed"]
    assert json.loads(json.dumps(report))["sections"][0]["figures"][0]["value"] == 0.9


def test_a_section_that_hangs_is_cut_off_and_keeps_its_figures(program: type[Program]) -> None:
    work = program.work(printing(Figure("a", 1.0, "ms")) + "; import time; time.sleep(60)", seconds=6.0)
    done = carry_out(work, work.seconds, dry=False)
    assert done.figures == (Figure("a", 1.0, "ms"),)
    assert done.problem.startswith("cut off after 6 s") and done.failed and done.seconds < 20


def test_a_section_that_dies_says_why_and_keeps_its_figures(program: type[Program]) -> None:
    done = carry_out(program.work(printing(Figure("a", 1.0, "ms")) + "; raise SystemExit('no memory')"), 20, dry=False)
    assert done.figures and done.problem.startswith("status 1") and "no memory" in done.problem


def test_a_part_of_ours_that_fails_fails_its_section_and_a_peers_does_not(program: type[Program]) -> None:
    text = "from bench.gpu.figures import Figure, a_peers, ours, show\nwith {}('x'):\n    1 / 0\n"
    peer, own = (carry_out(program.work(text.format(whose)), 20, dry=False) for whose in ("a_peers", "ours"))
    assert not peer.failed and own.failed and not own.problem
    assert all("ZeroDivisionError" in one.notes[0] for one in (peer, own))


def test_without_time_left_a_section_is_not_begun(program: type[Program]) -> None:
    done = carry_out(program.work("raise SystemExit('begun')"), 3.0, dry=False)
    assert done.problem == "no time was left for it"


def test_a_model_lies_in_memory_only_where_there_is_plenty_and_is_gone_after_the_run(tmp_path: Path) -> None:
    for least, inside in ((1, True), (1 << 60, False)):
        with room.room(tmp_path, least) as folder:
            assert room.folder() == folder and folder.is_dir() and (folder.parent == tmp_path) == inside
        assert not folder.exists() and room.folder() != folder


def test_what_runs_beside_the_sections_ends_with_them(program: type[Program]) -> None:
    here = program.folder / "here"
    program.work(f"import os, time; open({str(here)!r}, 'w').write(str(os.getpid())); time.sleep(60)")
    with beside(["made_up"]):
        deadline = time.monotonic() + 20
        while not here.exists() or not here.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)
    with pytest.raises(ProcessLookupError):
        os.kill(int(here.read_text()), 0)


@pytest.mark.parametrize("others", ["", "def test_here(): ..."], ids=["alone", "beside one that runs"])
def test_tests_that_were_all_skipped_have_shown_nothing_and_each_is_named(tmp_path: Path, others: str) -> None:
    file = tmp_path / "test_made_up.py"
    file.write_text(f"import pytest\n@pytest.mark.skip(reason='no second GPU')\ndef test_there(): ...\n{others}\n")
    section = carry_out(SectionRun("tests", (*PYTEST, str(file)), 60), 60, dry=False)
    counts = {figure.name: figure.value for figure in section.figures}
    assert counts == {"tests passed": bool(others), "tests failed": 0, "tests skipped": 1}
    assert section.failed == (not others) and not section.problem
    assert len(section.notes) == 1 and "no second GPU" in section.notes[0]


@pytest.mark.emulated
def test_a_dry_run_carries_out_the_measuring_code_and_writes_both_files(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.gpu.run", "--dry", "--only", "kernels", "--json", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    (section,) = report["sections"]
    measured = {figure["name"] for figure in section["figures"]}
    assert {"copy bandwidth", "bf16 matrix peak", "decode attention 2 x 40", "prefill attention 24"} <= measured
    (table,) = tmp_path.glob("gpu-dry-*.md")
    assert "A dry run: no GPU." in table.read_text()
    assert json.loads(table.with_suffix(".json").read_text())["real"] is False
