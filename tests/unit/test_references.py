"""Everything that a comment or a document refers to exists: steps of a request's life, rules and tables of the
protocol, files, functions and members of classes."""

import ast
import builtins
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pytest

from tests.unit.sources import ROOT, Block, blocks, files, prose, python_files, statements, tree

PROTOCOL = "docs/protocol.md"
SUFFIXES = "py|md|h|cpp|proto|toml|sh|svg"
ROOTS = ("", "kernels/", "protos/", "kernels/baton_kernels/")  # folders that a path may be written from

STEPS = re.compile(
    r"\bsteps?\s+(\d+(?:(?:\s*,\s*|\s*,?\s+(?:to|and|or)\s+|\s*[-–]\s*)\d+)*)\s+of\s+a\s+request['’]s\s+life",
    re.IGNORECASE,
)
RULE = re.compile(r"(?<![\w\])`\"'])\[([a-z][a-z_]*)\](?![\w(\[])")
TABLE = re.compile(
    r"\b[Tt]ables?\s+\"([^\"]+)\"|\"([^\"]+)\"\s+(?:in|of)\s+`?docs/protocol\.md|docs/protocol\.md`?[,:]?\s+\(?\"([^\"]+)\""
)
PATH = re.compile(rf"(?<!\]\()(?<![\w/.*<>{{}}~$…-])((?:[\w-][\w.-]*/)+[\w.-]+\.(?:{SUFFIXES}))(?![\w/*])")
BARE = re.compile(rf"(?<!\]\()(?<![\w/.*<>{{}}~$…-])([\w-]+\.(?:{SUFFIXES}))(?![\w/*(])")
FUNCTION = re.compile(r"`([\w/.-]+\.(?:py|h|cpp)):\s+([A-Za-z_][\w.]*)`")
MEMBER = re.compile(r"`([A-Z]\w*)\.([a-z_]\w*)(?:\(\))?`")
CALL = re.compile(r"`([a-z_]\w*)\(\)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)

# Files that the text names and that are not of this repository: what users or other programs write.
ELSEWHERE = {
    "baton.toml": "the user's configuration, in examples",
    "mesh.toml": "the user's configuration, in examples",
    "gpu-DATE.md": "a result, named after its day",
    "llama.cpp": "another server's name",
}
# A bare name followed by parentheses that is no function of this repository.
OTHER_FUNCTIONS = {"vdpbf16ps": "an instruction"}


@dataclass
class Repository:
    """Everything that a reference may name."""

    files: frozenset[str]
    protocol: str
    members: dict[str, set[str]] = field(default_factory=dict)  # class -> its attributes and methods
    functions: set[str] = field(default_factory=set)
    read: Callable[[str], str] = lambda path: (ROOT / path).read_text()
    named: dict[str, list[str]] = field(init=False)  # bare name -> files

    def __post_init__(self) -> None:
        self.named = {}
        for path in self.files:
            self.named.setdefault(path.rpartition("/")[2], []).append(path)

    @cached_property
    def steps(self) -> set[int]:
        return {int(n) for n in re.findall(r"^\| (\d+) \w", self.protocol, re.MULTILINE)}

    @cached_property
    def rules(self) -> set[str]:
        return set(re.findall(r"^\| \[(\w+)\] \|", self.protocol, re.MULTILINE))

    @cached_property
    def headings(self) -> set[str]:
        return set(HEADING.findall(self.protocol))

    def find(self, name: str, *, near: str) -> list[str]:
        """Files that this path or bare name may mean, as text in the file `near` writes it."""
        folder = Path(near).parent.as_posix()
        direct = [f"{start}{name}" for start in (*ROOTS, f"{folder}/")]
        found = [path for path in dict.fromkeys(direct) if path in self.files]
        if "/" in name or found:
            return found[:1]
        return self.named.get(name, [])


def lines_of(block: Block, pattern: re.Pattern[str]) -> Iterator[tuple[int, re.Match[str]]]:
    for match in pattern.finditer(block.text):
        yield block.line_at(match.start()), match


def broken(block: Block, repository: Repository) -> Iterator[str]:
    """References of this block that lead nowhere, each as `path:line: what`."""

    def at(line: int, what: str) -> str:
        return f"{block.path}:{line}: {what}"

    for line, match in lines_of(block, STEPS):
        for number in map(int, re.findall(r"\d+", match[1])):
            if number not in repository.steps:
                yield at(line, f"no step {number} in {PROTOCOL}")
    for line, match in lines_of(block, RULE):
        if match[1] not in repository.rules and cites_rule(block, match):
            yield at(line, f"no rule [{match[1]}] in {PROTOCOL}")
    for line, match in lines_of(block, TABLE):
        name = re.sub(r"\s+", " ", match[1] or match[2] or match[3])
        if name not in repository.headings:
            yield at(line, f'no heading "{name}" in {PROTOCOL}')
    for line, match in lines_of(block, PATH):
        if not repository.find(match[1], near=block.path) and not is_example(block, match):
            yield at(line, f"no file {match[1]}")
    for line, match in lines_of(block, BARE):
        found = repository.find(match[1], near=block.path)
        if len(found) != 1 and match[1] not in ELSEWHERE and not is_example(block, match):
            yield at(line, f"{len(found) or 'no'} files are called {match[1]}: {', '.join(sorted(found))}".rstrip(": "))
    for line, match in lines_of(block, FUNCTION):
        for path in repository.find(match[1], near=block.path)[:1]:
            if not defines(repository.read(path), path, match[2]):
                yield at(line, f"{path} defines no {match[2]}")
    for line, match in lines_of(block, MEMBER):
        if match[1] in repository.members and match[2] not in repository.members[match[1]]:
            yield at(line, f"{match[1]} has no {match[2]}")
    for line, match in lines_of(block, CALL):
        if match[1] not in repository.functions and not hasattr(builtins, match[1]) and match[1] not in OTHER_FUNCTIONS:
            yield at(line, f"no function {match[1]}()")
    if block.path.endswith(".md"):
        for line, match in lines_of(block, LINK):
            if what := broken_link(block.path, match[1], repository):
                yield at(line, what)


def cites_rule(block: Block, match: re.Match[str]) -> bool:
    """A word in brackets is a rule where the text calls it one; else it may be the shape of an array, or a section."""
    before = block.text[max(0, match.start() - 40) : match.start()]
    if match[1] == "name":
        return False  # stands for any rule
    return block.path == PROTOCOL or before.endswith("**") or re.search(r"\b[Rr]ules?\b", before) is not None


def is_example(block: Block, match: re.Match[str]) -> bool:
    """Part of an address, or of a path that is the reader's own."""
    before = block.text[max(0, match.start() - 40) : match.start()].rsplit(None, 1)[-1:]
    return bool(before) and any(sign in before[0] for sign in ("://", "~", "$", "--"))


def broken_link(page: str, target: str, repository: Repository) -> str:
    if "://" in target or target.startswith("mailto:"):
        return ""
    name, _, anchor = target.partition("#")
    path = (Path(page).parent / name).as_posix() if name else page
    path = "/".join(normal(path))
    if path not in repository.files and not any(f.startswith(f"{path}/") for f in repository.files):
        return f"no file {target}"
    if anchor and anchor not in {slug(h) for h in HEADING.findall(repository.read(path))}:
        return f"no heading #{anchor} in {path}"
    return ""


def normal(path: str) -> list[str]:
    parts = list[str]()
    for part in path.split("/"):
        if part == "..":
            parts = parts[:-1]
        elif part != ".":
            parts.append(part)
    return parts


def slug(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def defines(text: str, path: str, name: str) -> bool:
    """Whether the file defines this function, class, constant or member."""
    if not path.endswith(".py"):
        return re.search(rf"\b{re.escape(name.rpartition('.')[2])}\b", text) is not None
    *outer, last = name.split(".")
    body: list[ast.stmt] = ast.parse(text).body
    for part in outer:
        inside = [node for node in body if isinstance(node, ast.ClassDef) and node.name == part]
        if not inside:
            return False
        if last in members_of(inside[0]):
            return True
        body = inside[0].body
    return last in names_in(body)


def names_in(body: list[ast.stmt]) -> set[str]:
    names = set[str]()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        elif isinstance(node, ast.Assign):
            names |= {t.id for t in node.targets if isinstance(t, ast.Name)}
    return names


def members_of(node: ast.ClassDef) -> set[str]:
    """Names that the class body defines, and attributes that its methods set."""
    names = names_in(node.body)
    for inner in statements(node.body):
        targets = inner.targets if isinstance(inner, ast.Assign) else [getattr(inner, "target", None)]
        for target in targets:
            names |= {t.attr for t in getattr(target, "elts", [target]) if isinstance(t, ast.Attribute)}
    return names


@pytest.fixture(scope="module")
def repository() -> Repository:
    members, functions, bases = dict[str, set[str]](), set[str](), dict[str, set[str]]()
    for path in python_files():
        for node in statements(tree(path).body):
            if isinstance(node, ast.ClassDef):
                members.setdefault(node.name, set()).update(members_of(node))
                bases.setdefault(node.name, set()).update(b.id for b in node.bases if isinstance(b, ast.Name))
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions.add(node.name)
    for name, above in bases.items():
        members[name] |= set[str]().union(*(members.get(base, set()) for base in above))
    for path in (f for f in files() if f.endswith(".proto")):
        for name, body in re.findall(r"^message (\w+) {(.*?)^}", (ROOT / path).read_text(), re.DOTALL | re.MULTILINE):
            members.setdefault(name, set()).update(re.findall(r"(\w+) = \d+", body))
    return Repository(frozenset(files()), (ROOT / PROTOCOL).read_text(), members, functions)


def test_everything_that_comments_and_documents_refer_to_exists(repository: Repository) -> None:
    lost = sorted({what for block in blocks() for what in broken(block, repository)})
    assert not lost, f"{len(lost)} references lead nowhere:\n" + "\n".join(lost)


SMALL_PROTOCOL = """# Protocol
| 1 accept | x |
| 2 route | y |
## Landing at decode
| [ticket] | x |
"""
SMALL = Repository(
    frozenset({"docs/protocol.md", "a/one.py", "a/two.py", "b/two.py", "a/code.h"}),
    SMALL_PROTOCOL,
    {"Thing": {"go"}},
    {"known"},
    {
        "a/one.py": "class Thing:\n    def go(self): self.speed = 1\nLIMIT = 3\n",
        "docs/protocol.md": SMALL_PROTOCOL,
    }.__getitem__,
)


@pytest.mark.parametrize(
    ("path", "text", "found"),
    [
        ("a/x.py", '"""Steps 1 and 2 of a request\'s life."""', []),
        ("a/x.py", '"""Step 3 of a request\'s life."""', ["a/x.py:1: no step 3 in docs/protocol.md"]),
        ("a/x.py", "x = 1\n# steps 1 to 4\n# of a request's life", ["a/x.py:2: no step 4 in docs/protocol.md"]),
        ("a/x.py", '"""Rule [ticket]: equal."""', []),
        ("a/x.py", '"""Rule [tickets]: equal."""', ["a/x.py:1: no rule [tickets] in docs/protocol.md"]),
        ("a/x.py", "x = rows  # [rows]", []),
        ("a/x.py", '"""The table "Landing at decode"."""', []),
        (
            "a/x.py",
            '"""Rows of "Landing" in docs/protocol.md."""',
            ['a/x.py:1: no heading "Landing" in docs/protocol.md'],
        ),
        ("a/x.py", "# see one.py and a/one.py and two.py", []),
        ("c/x.py", "# see two.py", ["c/x.py:1: 2 files are called two.py: a/two.py, b/two.py"]),
        ("c/x.py", "# see gone.py", ["c/x.py:1: no files are called gone.py"]),
        ("c/x.py", "# see a/gone.py", ["c/x.py:1: no file a/gone.py"]),
        ("c/x.py", "# see https://example.org/a/gone.py", []),
        ("c/x.h", "int x;\n// see a/gone.h\n", ["c/x.h:2: no file a/gone.h"]),
        ("Makefile", "x: ## runs a/gone.py", ["Makefile:1: no file a/gone.py"]),
        ("docs/x.md", "`a/one.py: Thing.go`, `a/one.py: LIMIT`, `a/one.py: Thing.speed`", []),
        ("docs/x.md", "one\n\n`a/one.py: Thing.stop`", ["docs/x.md:3: a/one.py defines no Thing.stop"]),
        ("docs/x.md", "`Thing.go` and `Other.stop`", []),
        ("docs/x.md", "`Thing.stop`", ["docs/x.md:1: Thing has no stop"]),
        ("docs/x.md", "`known()` and `len()`", []),
        ("docs/x.md", "`unknown()`", ["docs/x.md:1: no function unknown()"]),
        ("docs/x.md", "[page](protocol.md#landing-at-decode)", []),
        ("docs/x.md", "[page](protocol.md#gone)", ["docs/x.md:1: no heading #gone in docs/protocol.md"]),
        ("docs/x.md", "[page](../a/gone)", ["docs/x.md:1: no file ../a/gone"]),
    ],
)
def test_a_broken_reference_is_found_where_it_stands(path: str, text: str, found: list[str]) -> None:
    assert [what for block in prose(path, text) for what in broken(block, SMALL)] == found
