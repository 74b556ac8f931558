"""No test skips itself: a check that did not run looks like one that passed. Where the set-up lacks a part, tests fail
with its name; what needs another machine has a command of its own."""

import ast
from collections.abc import Iterator

import pytest

from tests.unit.sources import python_files, tree

SKIPS = {f"pytest.{name}" for name in ("skip", "importorskip", "xfail", "mark.skip", "mark.skipif", "mark.xfail")}
# file -> why its tests may be left out
ALLOWED = {
    "tests/gpu/conftest.py": "no GPU: bench/gpu names each test that was left out, and fails if all were",
    "tests/gpu/test_nccl.py": "one GPU without NCCL: likewise",
    "tests/rdma/fabric.py": "NIXL is an optional package: `make rdma-check` runs its suite",
    "tests/unit/kvtransfer/test_tcp_addresses.py": "no IPv6, as in many containers: the next test there needs none",
}


def skips(module: ast.AST) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Attribute) and (name := ast.unparse(node)) in SKIPS:
            yield name


def test_no_test_skips_itself() -> None:
    found = {path: set(skips(tree(path))) for path in python_files() if path.startswith("tests/")}
    assert {path: names for path, names in found.items() if names and path not in ALLOWED} == {}
    assert {path for path in ALLOWED if not found.get(path)} == set(), "these need no exception any more"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("pytest.skip('no triton')", ["pytest.skip"]),
        ("@pytest.mark.skipif(True, reason='')\ndef test(): ...", ["pytest.mark.skipif"]),
        ("torch = pytest.importorskip('torch')", ["pytest.importorskip"]),
        ("pytest.raises(ValueError)", []),
    ],
)
def test_the_search_finds_every_way_to_skip(text: str, names: list[str]) -> None:
    assert list(skips(ast.parse(text))) == names
