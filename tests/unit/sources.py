"""The files of this repository as the tests of its text read them: which there are, and the prose in each.

Prose is docstrings and comments of Python, comments of C++, protobuf and the Makefile, and whole documents. A block
keeps its line breaks, so that a place inside it has a line number.

The tests that read all files run in one process (tests/conftest.py), which parses each file once."""

import ast
import gc
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILT = {"build", "dist", "__pycache__", ".venv", ".git", "node_modules", "shared"}
GENERATED = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")
HIDDEN = {".ci", ".pre-commit-config.yaml", ".gitignore"}  # hidden names at the top that belong to the repository
PROSE = {".py", ".h", ".cpp", ".proto", ".md"}


@dataclass(frozen=True, slots=True)
class Block:
    """A docstring, a comment or a document."""

    path: str  # from the root
    line: int  # number of the line with its first character
    text: str

    def line_at(self, offset: int) -> int:
        return self.line + self.text.count("\n", 0, offset)


@cache
def files(root: Path = ROOT) -> tuple[str, ...]:
    """Every source file and document, as a path from the root."""
    found, folders = list[Path](), [root]
    while folders:
        for entry in folders.pop().iterdir():
            hidden = entry.name.startswith(".") and entry.name not in HIDDEN
            if hidden or entry.name in BUILT or entry.name.endswith(".egg-info"):
                continue
            (folders if entry.is_dir() else found).append(entry)
    return tuple(sorted(path.relative_to(root).as_posix() for path in found))


@cache
def python_files(root: Path = ROOT) -> tuple[str, ...]:
    return tuple(f for f in files(root) if f.endswith(".py") and not f.endswith(GENERATED))


@cache
def source(path: str, root: Path = ROOT) -> str:
    return (root / path).read_text() if (root / path).is_file() else ""


@cache
def tree(path: str, root: Path = ROOT) -> ast.Module:
    gc.disable()
    try:
        return ast.parse(source(path, root))
    finally:
        gc.freeze()  # millions of nodes that live on: nobody shall look through them again and again
        gc.enable()


@cache
def nodes(path: str, root: Path = ROOT) -> tuple[ast.AST, ...]:
    """All nodes of a file's tree."""
    module = tree(path, root)
    gc.disable()
    try:
        return tuple(ast.walk(module))
    finally:
        gc.enable()


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """These statements and all inside them."""
    for node in body:
        yield node
        for inner in ("body", "orelse", "finalbody"):
            yield from statements(getattr(node, inner, []))
        for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            yield from statements(part.body)


def blocks(root: Path = ROOT) -> Iterator[Block]:
    """All prose of the repository."""
    for path in files(root):
        if path.endswith(GENERATED):
            continue
        if Path(path).suffix in PROSE or path == "Makefile":
            yield from prose(path, (root / path).read_text())


def prose(path: str, text: str) -> Iterator[Block]:
    """The prose of one file."""
    if path.endswith(".py"):
        yield from docstrings(path, tree(path) if text == source(path) else ast.parse(text))
        yield from python_comments(path, text)
    elif path.endswith(".md"):
        yield Block(path, 1, text)
    elif path == "Makefile":
        yield from joined(
            path, ((n, line.partition("#")[2]) for n, line in enumerate(text.split("\n"), 1) if "#" in line)
        )
    else:
        for match in re.finditer(r"/\*.*?\*/|(?:^[ \t]*//[^\n]*\n)+|//[^\n]*", text, re.DOTALL | re.MULTILINE):
            yield Block(path, text.count("\n", 0, match.start()) + 1, re.sub(r"(?m)^[ \t]*(//|\*)", "", match[0]))


def docstrings(path: str, module: ast.Module) -> Iterator[Block]:
    """Docstrings of modules, classes and functions, and strings that stand alone."""
    for node in statements(module.body):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield Block(path, node.lineno, node.value.value)


def python_comments(path: str, text: str) -> Iterator[Block]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    yield from joined(path, ((t.start[0], t.string.lstrip("#")) for t in tokens if t.type == tokenize.COMMENT))


def joined(path: str, lines: Iterator[tuple[int, str]]) -> Iterator[Block]:
    """Comments on consecutive lines are one block."""
    first, last, parts = 0, -1, list[str]()
    for number, part in lines:
        if number != last + 1 and parts:
            yield Block(path, first, "\n".join(parts))
            parts = []
        first = first if parts else number
        parts.append(part)
        last = number
    if parts:
        yield Block(path, first, "\n".join(parts))
