"""docs/defects.md: each row has a command of its own, and the command selects at least one test that pytest runs.

Nothing is collected. The file of a command is parsed, and its test functions are compared with the name behind `-k` or
`::`. Tests that pytest leaves out unless `-m` names their mark do not count."""

import ast
import re
import shlex
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.unit.sources import ROOT, files, source, statements

PAGE = "docs/defects.md"
LEAST_ROWS = 40
LEFT_OUT = {"gpu", "emulated", "chaos", "envoy", "ui", "wheel"}  # marks that `addopts` in pyproject.toml excludes


def rows(page: str) -> list[list[str]]:
    """The cells of each row but heads and rules."""
    found = [re.split(r"(?<!\\)\|", line)[1:-1] for line in page.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in found if row[0].strip() != "Defect"]


def problem(row: list[str]) -> str:
    """Why the row is none; empty: it has a defect, a cause, and a command that selects a test."""
    if len(row) != 3 or not all(row):
        return f"has {len(row)} cells; wanted are defect, cause and command"
    command = row[2].removeprefix("`").removesuffix("`")
    match shlex.split(command):
        case ["pytest", path, "-k", name] if re.fullmatch(r"\w+", name):
            wanted, file = re.compile(f".*{name}"), path
        case ["pytest", path] if "::" in path:
            file, _, name = path.partition("::")
            wanted = re.compile(f"{re.escape(name)}$")
        case _:
            return f"{command}: is neither `pytest FILE -k NAME` nor `pytest FILE::TEST`"
    if file not in files():
        return f"{command}: there is no file {file}"
    if not any(map(wanted.match, running_tests(ast.parse(source(file))))):
        return f"{command}: {file} has no such test, or pytest leaves it out"
    return ""


def running_tests(module: ast.Module) -> Iterator[str]:
    """Names of the test functions of a file that a plain `pytest` runs."""
    for statement in module.body:
        if isinstance(statement, ast.Assign) and "pytestmark" in map(ast.unparse, statement.targets):
            if marks(statement.value) & LEFT_OUT:
                return
    for node in statements(module.body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            if not any(marks(decorator) & LEFT_OUT for decorator in node.decorator_list):
                yield node.name


def marks(expression: ast.expr) -> set[str]:
    """Names behind `pytest.mark` in an expression."""
    return set(re.findall(r"pytest\.mark\.(\w+)", ast.unparse(expression)))


def test_every_row_has_a_command_that_selects_a_test() -> None:
    found = rows((ROOT / PAGE).read_text())
    wrong = [why for row in found if (why := problem(row))]
    assert len(found) >= LEAST_ROWS and not wrong, "\n".join(wrong)


def test_no_two_rows_have_the_same_command() -> None:
    counts = Counter(row[2] for row in rows((ROOT / PAGE).read_text()))
    assert [command for command, count in counts.items() if count > 1] == []


def test_the_marks_that_are_left_out_are_those_of_pytests_settings() -> None:
    (excluded,) = re.findall(r'"-m", "([^"]+)"', (ROOT / "pyproject.toml").read_text())
    assert {word for word in excluded.split() if word not in ("not", "and")} == LEFT_OUT


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("pytest tests/unit/test_names.py -k made_up_name", "no such test"),
        ("pytest tests/unit/test_names.py::test_a_class", "no such test"),
        ("pytest tests/unit/test_made_up.py -k name", "no file"),
        ("pytest tests/chaos/test_kill.py -k fifty_kills", "leaves it out"),
        ("pytest tests/unit/test_names.py", "neither"),
        ("make up", "neither"),
    ],
)
def test_a_made_up_command_is_reported(command: str, why: str) -> None:
    head = "| Defect | Cause | Fails without the fix |\n|---|---|---|\n"
    (row,) = rows(f"{head}| It hung. | It waited. | `{command}` |\n")
    assert why in problem(row)
    assert problem(row[:2]) and problem([*row[:2], ""])


def test_both_ways_to_name_a_test_are_read() -> None:
    name = "test_a_class_name_exists_once_in_the_whole_repository"
    for command in (f"pytest tests/unit/test_names.py::{name}", f"pytest tests/unit/test_names.py -k {name[7:20]}"):
        assert problem(["It hung.", "It waited.", f"`{command}`"]) == ""
