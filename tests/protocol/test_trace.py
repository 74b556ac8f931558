"""Traces of the product's own processes are what the model allows, and a trace with anything else in it is refused.

The processes run in the simulation (tests/sim/seeds), under its faults, through the network that logs messages
(mesh/network/logged_network.py). `make faults` checks the traces of real processes in the same way."""

import json
from functools import cache
from itertools import count
from pathlib import Path

import pytest

from mesh.network.message_log import MessageLog, open_message_log
from tests.protocol.traces.checking import TraceReport, check_folder, check_processes
from tests.protocol.traces.environment import ENVIRONMENT
from tests.protocol.traces.mutations import MUTATIONS, Mutation
from tests.protocol.traces.reading import BadTrace, ProcessTrace, killed, read_log
from tests.sim.message_logs import SimLogs
from tests.sim.seeds.drawing import draw
from tests.sim.seeds.removals import removed
from tests.sim.seeds.run import run_story

SEEDS = (22, 18, 14)  # their runs are short, and have what the mutations look for
ODD_SEEDS = (6, 23)  # workers refuse orders as they come


@cache
def texts(seed: int) -> tuple[bytes, ...]:
    """The logs of a simulated mesh."""
    logs = SimLogs()
    assert run_story(draw(seed), logs=logs).violations == []
    return tuple(logs.texts)


def processes(seed: int) -> list[ProcessTrace]:
    return [read_log(text, f"seed {seed}, process {number}") for number, text in enumerate(texts(seed))]


def checked(traces: list[ProcessTrace]) -> TraceReport:
    report = TraceReport()
    check_processes(traces, report, arrives_seconds=None)
    return report


@pytest.mark.parametrize("seed", (*SEEDS, *ODD_SEEDS))
def test_a_simulated_mesh_under_faults_does_what_the_model_allows(seed: int) -> None:
    report = checked(processes(seed))
    assert report.problems == []
    assert report.requests > 10 and report.events > 500


def test_the_traces_reach_faults_and_repairs() -> None:
    report = TraceReport()
    for seed in SEEDS:
        check_processes(processes(seed), report, arrives_seconds=None)
    assert report.killed and report.resumed
    kinds = {kind.removeprefix("send ") for kind in report.kinds if kind.startswith("send ")}
    assert kinds >= {"Ready", "Landing", "Later", "Commit", "Landed", "Abort", "Quiet", "Lost", "Cancel", "Tokens"}


# ---- negative controls: copies of a trace with one thing changed


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.__name__)
def test_a_trace_with_a_step_that_the_model_forbids_is_refused(mutation: Mutation) -> None:
    for seed in SEEDS:
        traces = processes(seed)
        if mutation(traces):
            for each in traces:
                for number, line in enumerate(each.lines):
                    line["number"] = number
            assert checked(traces).problems != [], f"seed {seed}"
            return
    raise AssertionError("no trace has a place for this mutation")


@pytest.mark.parametrize("protection", ["first", "early", "one_ready", "requiet at prefill"])
def test_the_trace_of_a_product_without_a_rule_is_refused(protection: str) -> None:
    logs = SimLogs()
    with removed(protection) as rules:
        run_story(draw(5), rules=rules, logs=logs)
    traces = [read_log(text, f"process {number}") for number, text in enumerate(logs.texts)]
    assert checked(traces).problems != []


# ---- traces that prove nothing


def test_a_trace_whose_recorder_lost_lines_is_refused_by_name() -> None:
    text = texts(SEEDS[0])[1].split(b"\n")
    with pytest.raises(BadTrace, match=r"decode-7\.jsonl: the recorder lost lines 5 to 6"):
        read_log(b"\n".join(text[:5] + text[7:]), "decode-7.jsonl")
    with pytest.raises(BadTrace, match="its first line is missing"):
        read_log(b"", "empty.jsonl")
    with pytest.raises(BadTrace, match="line 3 is damaged"):
        read_log(b"\n".join([*text[:3], text[3][:9], *text[4:]]), "cut.jsonl")


def test_a_last_line_that_a_kill_has_cut_is_left_out() -> None:
    text = texts(SEEDS[0])[1]
    whole = read_log(text, "whole").lines
    assert read_log(text[:-5], "killed").lines == whole[:-1]


def test_a_worker_without_its_gateways_log_is_refused() -> None:
    workers = [each for each in processes(SEEDS[0]) if each.tier != "gateway"]
    with pytest.raises(BadTrace, match="no gateway of this trace has sent request"):
        checked(workers)


def test_a_trace_without_events_or_without_faults_proves_nothing(tmp_path: Path) -> None:
    assert check_folder(tmp_path).missing() == "the trace has no events of a request"
    assert TraceReport(requests=3, events=30).missing() == "no process of the trace was killed or stood still"
    assert "second attempt" in TraceReport(requests=3, events=30, killed=1).missing()
    assert TraceReport(requests=3, events=30, stood_still=1, resumed=1).missing() == ""


# ---- the recorder


def test_a_line_that_cannot_be_written_is_counted_and_shows_as_a_gap() -> None:
    written, full = list[bytes](), False
    numbers = count()

    def write(line: bytes) -> None:
        if full:
            raise OSError(28, "No space left on device")
        written.append(line)

    log = MessageLog(write, tier="decode", name="decode-0", incarnation=7, clock=lambda: float(next(numbers)))
    full = True
    log.note("end", stream=1)
    full = False
    log.note("end", stream=2)
    assert log.lost == 1
    with pytest.raises(BadTrace):
        read_log(b"".join(written), "decode")


def test_a_process_logs_into_a_file_of_its_own_that_only_its_owner_reads(tmp_path: Path) -> None:
    log = open_message_log(tmp_path / "logs", tier="prefill", name="prefill-0", incarnation=255, clock=lambda: 1.0)
    log.note("open", stream=0, channel="kv", dialled=True)
    (file,) = (tmp_path / "logs").iterdir()
    assert file.name == "prefill-00000000000000ff.jsonl" and file.stat().st_mode & 0o777 == 0o600
    first, second = map(json.loads, file.read_text().splitlines())
    assert (first["what"], first["name"], second["channel"]) == ("start", "prefill-0", "kv")


def test_a_process_without_its_last_line_was_killed() -> None:
    start = {"number": 0, "seconds": 1.0, "what": "start"}
    ended = ProcessTrace("decode", "a", 1, [start, {"number": 1, "seconds": 5.0, "what": "exit"}])
    dead = ProcessTrace("decode", "b", 2, [start, {"number": 1, "seconds": 2.0, "what": "send"}])
    assert killed([ended, dead]) == [dead]


def test_every_admitted_step_has_its_reason() -> None:
    files = [Path(__file__).parent / "traces" / name for name in ("environment.py", "shown.py")]
    text = "".join(file.read_text() for file in files)
    named = [name for name in ENVIRONMENT if text.count(f"# {name}") == 0]
    assert named == [] and all(len(reason) > 15 for reason in ENVIRONMENT.values())
