"""The input file is checked as a whole, each fault is named with its line and field, and no prompt is held."""

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.batches.input_file import MOST_FAULTS, BatchInput
from gateway.batches.lines import URLS, digest, read_line
from gateway.batches.problems import BatchRefused, BatchStopped
from tests.unit.cli.batch.batch_files import entry, numbered, write_lines


def refusal(path: Path, **options: Any) -> str:
    with pytest.raises(BatchRefused) as refused:
        BatchInput.checked(path, **options)
    return str(refused.value)


def nothing_skipped(_: bytes) -> bool:
    return False


def test_requests_come_in_their_order_without_those_that_are_skipped(tmp_path: Path) -> None:
    given = [entry("a"), "", entry("b", url=URLS[0]), "  ", entry("c")]
    source = BatchInput.checked(write_lines(tmp_path / "in", given))
    assert len(source.numbers) == 3
    left = list(source.requests(lambda key: key == digest("a")))
    assert [(each.custom_id, each.url) for each in left] == [("b", URLS[0]), ("c", "/v1/completions")]
    assert left[0].body == {"prompt": "b"}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "line 2: this is no JSON"),
        ("[1]", "line 2: a JSON array stands here"),
        ('{"custom_id": NaN}', "line 2: this is no JSON (JSON has no NaN)"),
        ("[" * 100_000, "line 2: the JSON is nested too deeply"),
        (entry("b", custom_id=...), "line 2: custom_id: it is missing; give each request a name of its own"),
        (entry(7), "line 2: custom_id: it is 7; write a string"),
        (entry(""), "line 2: custom_id: it is ''; write a string that is not empty"),
        (entry("a"), "line 2: custom_id: 'a' is that of line 1, too; give each request its own"),
        (entry("b", method="GET"), "line 2: method: it is 'GET'; write 'POST'"),
        (entry("b", method=...), "line 2: method: it is missing; write 'POST'"),
        (entry("b", url="/v1/messages"), "line 2: url: it is '/v1/messages'; write one of /v1/chat/completions, "),
        (entry("b", url=["x"]), "line 2: url: it is a JSON array; write one of"),
        (entry("b", body="hello"), "line 2: body: it is 'hello'; write the request as a JSON object"),
        (entry("b", body=...), "line 2: body: it is missing"),
        (entry("b", body={"stream": True}), "line 2: body.stream: answers of a batch are whole; remove the field"),
    ],
)
def test_a_faulty_line_is_named_with_its_number_its_field_and_the_remedy(
    line: object, problem: str, tmp_path: Path
) -> None:
    message = refusal(write_lines(tmp_path / "in", [entry("a"), line, entry("z")]))
    assert "1 line is no request of a batch, so nothing ran" in message and problem in message


def test_stream_may_be_false() -> None:
    line, faults = read_line(json.dumps(entry("a", body={"stream": False})).encode(), 1)
    assert line is not None and not faults


def test_all_faults_of_a_line_are_named(tmp_path: Path) -> None:
    message = refusal(write_lines(tmp_path / "in", [{"body": {"stream": True}}]))
    assert [part in message for part in ("custom_id", "method", "url", "body.stream")] == [True] * 4


@pytest.mark.parametrize("faulty", [1, MOST_FAULTS, MOST_FAULTS + 5])
def test_the_first_faulty_lines_are_listed_and_the_others_counted(faulty: int, tmp_path: Path) -> None:
    message = refusal(write_lines(tmp_path / "in", [entry("a"), *(entry(f"b-{n}", url="x") for n in range(faulty))]))
    assert message.count("\n  line ") == min(faulty, MOST_FAULTS)
    assert (f"… and {faulty - MOST_FAULTS} more" in message) == (faulty > MOST_FAULTS)


def test_a_line_over_the_limit_is_a_fault_and_the_lines_behind_it_keep_their_numbers(tmp_path: Path) -> None:
    long = entry("long", body={"prompt": "x" * 5000})
    message = refusal(write_lines(tmp_path / "in", [entry("a"), long, entry("a")]), most_line_bytes=1000)
    assert "line 2: it is longer than 1000 bytes" in message and "line 3: custom_id: 'a' is that of line 1" in message
    exact = write_lines(tmp_path / "exact", [entry("a")])
    assert BatchInput.checked(exact, most_line_bytes=exact.stat().st_size - 1).numbers


def test_the_mark_with_which_windows_begins_a_file_and_its_line_ends_are_no_fault(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "in", [entry("a"), entry("b")])
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert [each.custom_id for each in BatchInput.checked(path).requests(nothing_skipped)] == ["a", "b"]


@pytest.mark.parametrize(
    ("prepare", "problem"),
    [
        (lambda path: None, "cannot be read: No such file or directory"),
        (lambda path: path.mkdir(), "is no regular file"),
        (lambda path: path.write_text("\n\n"), "holds no request"),
        (lambda path: path.symlink_to("/dev/null"), "is no regular file"),
    ],
)
def test_a_file_that_cannot_be_read_twice_is_refused(
    prepare: Callable[[Path], object], problem: str, tmp_path: Path
) -> None:
    prepare(tmp_path / "in")
    assert problem in refusal(tmp_path / "in")


def test_a_file_that_changes_after_the_check_ends_the_run(tmp_path: Path) -> None:
    path = numbered(tmp_path / "in", 3)
    source = BatchInput.checked(path)
    numbered(path, 3, first=1)
    with pytest.raises(BatchStopped, match=r"was changed during the run \(line 1\)"):
        list(source.requests(nothing_skipped))


def peak_bytes(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_no_prompt_is_held_beyond_its_turn(tmp_path: Path) -> None:
    lines = (entry(f"r-{number}", body={"prompt": "x" * 20_000}) for number in range(300))
    path = write_lines(tmp_path / "in", lines)

    def read() -> int:
        return sum(1 for _ in BatchInput.checked(path).requests(nothing_skipped))

    assert peak_bytes(read) < 700_000 < path.stat().st_size / 8
    # Negative control: a reader that held the requests would need all of the file.
    assert peak_bytes(lambda: list(BatchInput.checked(path).requests(nothing_skipped))) > 5_000_000
