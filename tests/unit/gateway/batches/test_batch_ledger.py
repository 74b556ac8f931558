"""The ledger holds whole lines only, each custom_id once, whatever ended the run before."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from gateway.batches.input_file import BatchInput
from gateway.batches.ledger import BatchLedger, opened_ledger
from gateway.batches.ledger_file import LedgerFile
from gateway.batches.lines import digest
from gateway.batches.outcome import BatchAnswer, BatchOutcome, NoAnswer
from gateway.batches.problems import BatchRefused, BatchStopped
from tests.unit.cli.batch.batch_files import entry, numbered, outcomes, write_lines


def outcome(custom_id: str, status: int = 200) -> BatchOutcome:
    return BatchOutcome(custom_id, BatchAnswer(status, f"id-{custom_id}", {"text": f"line\nof {custom_id}\u2028é"}))


def go_on(source: Path, output: Path, errors: Path | None = None, *, force: bool = False, most: int = 99) -> list[str]:
    """A run in which every request is answered at once; the custom_ids that it asked."""
    checked, asked = BatchInput.checked(source), list[str]()
    with opened_ledger(source, output, errors) as ledger:
        ledger.take_up(checked.numbers.keys(), force=force)
        for line in checked.requests(ledger.has):
            if len(asked) == most:
                break
            ledger.write(outcome(line.custom_id))
            asked.append(line.custom_id)
    return asked


def refusal(source: Path, output: Path, errors: Path | None = None) -> str:
    with pytest.raises(BatchRefused) as refused:
        go_on(source, output, errors)
    return str(refused.value)


def test_a_second_run_asks_only_what_the_first_one_left(tmp_path: Path) -> None:
    source, output = numbered(tmp_path / "in", 5), tmp_path / "out"
    assert go_on(source, output, most=2) == ["r-0", "r-1"]
    assert go_on(source, output) == ["r-2", "r-3", "r-4"]
    assert go_on(source, output) == []
    assert list(outcomes(output)) == [f"r-{n}" for n in range(5)]


def test_a_line_has_the_fields_of_openais_output_file(tmp_path: Path) -> None:
    with opened_ledger(tmp_path / "in", tmp_path / "out", None) as ledger:
        ledger.write(outcome("a"))
        ledger.write(BatchOutcome("b", None, NoAnswer("timeout", "no whole answer after 5 s")))
    found = outcomes(tmp_path / "out")
    body = {"text": "line\nof a\u2028é"}
    name = digest("a").hex()
    assert found["a"] == {
        "id": f"batch_req_{name}",
        "custom_id": "a",
        "response": {"status_code": 200, "request_id": "id-a", "body": body},
        "error": None,
    }
    assert found["b"]["response"] is None
    assert found["b"]["error"] == {"code": "timeout", "message": "no whole answer after 5 s"}


@pytest.fixture
def whole_run(tmp_path: Path) -> tuple[Path, bytes]:
    source = numbered(tmp_path / "in", 2)
    go_on(source, tmp_path / "out")
    return source, (tmp_path / "out").read_bytes()


def complete_after_every_cut(source: Path, whole: bytes, output: Path) -> bool:
    """Whether a run completes the output wherever a kill has torn it."""
    for size in range(len(whole)):
        output.write_bytes(whole[:size])
        try:
            go_on(source, output)
            complete = set(outcomes(output)) == {f"r-{n}" for n in range(2)}
        except (AssertionError, ValueError, BatchRefused):
            return False
        if not complete:
            return False
    return True


def test_a_run_completes_an_output_that_is_torn_at_any_byte(whole_run: tuple[Path, bytes]) -> None:
    source, whole = whole_run
    assert complete_after_every_cut(source, whole, source.parent / "out")


def test_negative_control_without_the_cut_a_torn_line_spoils_the_output(
    whole_run: tuple[Path, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, whole = whole_run
    monkeypatch.setattr(LedgerFile, "cut", lambda self: 0)
    assert not complete_after_every_cut(source, whole, source.parent / "out")


def test_negative_control_without_the_ledger_requests_are_done_twice(
    whole_run: tuple[Path, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, whole = whole_run
    monkeypatch.setattr(BatchLedger, "has", lambda self, key: False)
    assert not complete_after_every_cut(source, whole, source.parent / "out")


def test_failed_requests_go_to_a_file_of_their_own_and_are_not_asked_again(tmp_path: Path) -> None:
    source, output, errors = numbered(tmp_path / "in", 3), tmp_path / "out", tmp_path / "errors"
    with opened_ledger(source, output, errors) as ledger:
        ledger.write(outcome("r-0", 400))
        ledger.write(BatchOutcome("r-1", None, NoAnswer("timeout", "")))
        ledger.write(outcome("r-2"))
    assert set(outcomes(errors)) == {"r-0", "r-1"} and set(outcomes(output)) == {"r-2"}
    assert go_on(source, output, errors) == []
    errors.unlink()
    assert go_on(source, output, errors) == ["r-0", "r-1"]
    outcomes(output, errors)


def test_both_files_are_cut(tmp_path: Path) -> None:
    source, output, errors = numbered(tmp_path / "in", 3), tmp_path / "out", tmp_path / "errors"
    output.write_bytes(outcome("r-0").line() + outcome("r-1").line()[:-1])
    errors.write_bytes(outcome("r-2", 400).line()[:5])
    assert go_on(source, output, errors) == ["r-1", "r-2"]
    assert set(outcomes(output, errors)) == {"r-0", "r-1", "r-2"}


def test_an_output_of_another_input_is_refused_and_stays_as_it_is_unless_forced(tmp_path: Path) -> None:
    source, output = numbered(tmp_path / "in", 3, first=1), tmp_path / "out"
    output.write_bytes(outcome("r-0").line() + outcome("r-1").line() + b'{"id": "batch_re')
    before = output.read_bytes()
    message = refusal(source, output)
    assert "outcomes of 1 requests that the input lacks ('r-0')" in message and "--force" in message
    assert output.read_bytes() == before
    assert go_on(source, output, force=True) == ["r-2", "r-3"]
    assert set(outcomes(output)) == {"r-0", "r-1", "r-2", "r-3"}


@pytest.mark.parametrize(
    "content",
    [
        b"my notes\nand more\n",
        b"my notes without an end",
        b'{"custom_id": "a", "method": "POST"}\n',
        b'{"custom_id": 1, "response": null, "error": null}\n',
        b"[]\n",
        b"\x00\x00\x00",
    ],
)
def test_a_file_of_another_kind_is_refused_and_stays_as_it_is(content: bytes, tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.write_bytes(content)
    assert "line 1 is no answer of a batch" in refusal(numbered(tmp_path / "in", 1), output)
    assert output.read_bytes() == content


def test_an_output_with_a_custom_id_twice_is_refused(tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.write_bytes(outcome("r-0").line() * 2)
    assert "custom_id 'r-0' stands there a second time" in refusal(numbered(tmp_path / "in", 1), output)


def test_a_second_run_is_kept_out_while_the_first_one_runs(tmp_path: Path) -> None:
    source, output = numbered(tmp_path / "in", 1), tmp_path / "out"
    with opened_ledger(source, output, None):
        assert "another run writes" in refusal(source, output)
    assert go_on(source, output) == ["r-0"]


def test_two_of_the_files_must_not_be_one(tmp_path: Path) -> None:
    source, other = numbered(tmp_path / "in", 1), tmp_path / "other"
    before = source.read_bytes()
    (tmp_path / "link").symlink_to(source)
    assert "the output and the input are the same file" in refusal(source, source)
    assert "the output and the input are the same file" in refusal(source, tmp_path / "link")
    assert "--errors and the input are the same file" in refusal(source, other, source)
    assert "--errors and the output are the same file" in refusal(source, other, tmp_path / "." / "other")
    assert source.read_bytes() == before and not other.exists()


def test_an_output_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    source = numbered(tmp_path / "in", 1)
    assert "cannot be written: No such file or directory" in refusal(source, tmp_path / "none/out")
    assert "is no regular file" in refusal(source, tmp_path)
    assert "is no regular file" in refusal(source, Path("/dev/full"))


@pytest.mark.parametrize("written", [0, 7])
def test_a_full_disk_is_named_and_leaves_no_part_of_a_line(
    written: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel takes a part of a line, then nothing."""
    output, write, calls = tmp_path / "out", os.write, list[int]()

    def full(file: int, data: Any) -> int:
        calls.append(file)
        if len(calls) == 1 and written:
            return write(file, data[:written])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with opened_ledger(tmp_path / "in", output, None) as ledger:
        ledger.write(outcome("a"))
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(BatchStopped, match=r"No space left on device\. It holds whole lines only"):
            ledger.write(outcome("b"))
        assert not ledger.has(digest("b"))
        monkeypatch.setattr(os, "write", write)
        ledger.write(outcome("c"))
    assert list(outcomes(output)) == ["a", "c"]


def test_negative_control_the_check_of_files_sees_torn_lines_and_repeated_ones(tmp_path: Path) -> None:
    torn, twice = tmp_path / "torn", write_lines(tmp_path / "twice", [entry("a"), entry("a")])
    torn.write_bytes(outcome("a").line()[:-1])
    for path in (torn, twice):
        with pytest.raises(AssertionError):
            outcomes(path)
