"""Blocks of a page run in order, and a wrong one is reported with its file and line."""

from pathlib import Path

from tests.docs_check.markdown import parse_page
from tests.docs_check.running import Outcome, check_page


def check(text: str, folder: Path, seconds: float = 60.0) -> Outcome:
    return check_page(parse_page("docs/a.md", text), folder, seconds=seconds, say=lambda _: None)


def test_shell_blocks_share_folder_and_variables_and_python_blocks_share_names(tmp_path: Path) -> None:
    outcome = check(
        "```sh\nexport ADA=1\nmkdir sub\ncd sub\n```\n"
        '```sh\ntest "$ADA" = 1\ntest "$(basename "$PWD")" = sub\n```\n'
        "```python\nx = 41\n```\n<!-- check: before y = 1 -->\n```python\nassert x + y == 42\n```\n",
        tmp_path,
    )
    assert not outcome.failures
    assert (outcome.run, outcome.commands) == (4, 7)


def test_a_wrong_command_is_reported_with_its_file_and_line_and_ends_the_page(tmp_path: Path) -> None:
    outcome = check("# Title\n\n```sh\ntrue\nls /no/such/place\ntrue\n```\n\n```sh\ntouch later\n```\n", tmp_path)
    (failure,) = outcome.failures
    assert (failure.page, failure.line) == ("docs/a.md", 5)
    assert "/no/such/place" in failure.what
    assert not (tmp_path / "work/later").exists()


def test_a_wrong_line_of_python_is_reported_with_its_line(tmp_path: Path) -> None:
    (failure,) = check("```python\nx = 1\n\nassert x == 2\n```\n", tmp_path).failures
    assert failure.line == 4 and "AssertionError" in failure.what


def test_a_block_that_hangs_or_says_something_else_fails(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (slow,) = check("```sh\nsleep 30\n```\n", tmp_path / "a", seconds=0.2).failures
    (other,) = check('<!-- check: prints "yes" -->\n```sh\necho no\n```\n', tmp_path / "b").failures
    assert "not done after" in slow.what
    assert "does not print 'yes'" in other.what


def test_what_is_skipped_is_listed_with_its_reason(tmp_path: Path) -> None:
    outcome = check("<!-- check: skip, it needs a cluster -->\n```sh\nkubectl get pods\n```\n", tmp_path)
    assert [(each.line, each.what, each.reason) for each in outcome.skipped] == [
        (3, "kubectl get pods", "it needs a cluster")
    ]
    assert outcome.run == 0


def test_a_background_block_runs_until_the_page_ends(tmp_path: Path) -> None:
    program = "echo $$ >pid\necho started\nsleep 60\n"
    outcome = check(
        f'<!-- check: background until "started" -->\n```sh\n{program}```\n```sh\nkill -0 "$(cat pid)"\n```\n', tmp_path
    )
    assert not outcome.failures
    assert not Path(f"/proc/{(tmp_path / 'work/pid').read_text().strip()}").exists()
