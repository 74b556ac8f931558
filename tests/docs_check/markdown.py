"""Reads what a page wants to be run: its code blocks, and the invisible comments above them that say how.

    <!-- check: skip, REASON -->                 the block is not run; the report lists it with the reason
    <!-- check: skip "LINE", REASON -->          its lines that begin with LINE are not run
    <!-- check: background until "TEXT" -->      it runs on; the page continues when TEXT appears in its output
    <!-- check: prints "TEXT" -->                its output must hold TEXT
    <!-- check: before CODE -->                  CODE runs first, in the block's language
    <!-- check: mesh -->                         anywhere on a page: a mesh runs, on the default addresses

A comment belongs to the next block. A comment that is not understood is an error of the page."""

import re
from dataclasses import dataclass, field

RUNNABLE = ("sh", "python")
_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})\s*(?P<language>[\w+-]*)")
_COMMENT = re.compile(r"^\s*<!--\s*check:\s*(.*?)\s*-->\s*$")
_SKIP = re.compile(r'skip(?:\s+"(?P<line>[^"]+)")?,\s*(?P<reason>\S.*)')
_BACKGROUND = re.compile(r'background until "(?P<ready>[^"]+)"')
_PRINTS = re.compile(r'prints "(?P<text>[^"]+)"')
_BEFORE = re.compile(r"before (?P<code>\S.*)")


@dataclass(frozen=True, slots=True)
class Skipped:
    page: str
    line: int
    what: str  # the block's first line, or the line that is left out
    reason: str


@dataclass(slots=True)
class CodeBlock:
    page: str
    line: int  # number of the first line of code on its page, from 1
    language: str
    text: str
    skip: str = ""  # reason
    ready: str = ""  # runs in the background until its output has this text
    prints: list[str] = field(default_factory=list)
    before: str = ""
    left_out: list[Skipped] = field(default_factory=list)  # single lines


@dataclass(slots=True)
class Page:
    path: str
    blocks: list[CodeBlock] = field(default_factory=list)  # those that can be run
    mesh: bool = False
    errors: list[tuple[int, str]] = field(default_factory=list)  # (line, what)


def parse_page(path: str, text: str) -> Page:
    page = Page(path)
    comments: list[tuple[int, str]] = []
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if match := _COMMENT.match(line):
            if match[1] == "mesh":
                page.mesh = True
            else:
                comments.append((number, match[1]))
        elif fence := _FENCE.match(line):
            first, body = number, []
            while number < len(lines) and not lines[number].strip().startswith(fence["fence"]):
                body.append(lines[number].removeprefix(fence["indent"]))
                number += 1
            number += 1
            if fence["language"] in RUNNABLE:
                block = CodeBlock(path, first + 1, fence["language"], "\n".join(body) + "\n")
                for where, comment in comments:
                    _apply(page, block, where, comment)
                page.blocks.append(block)
            elif comments:
                page.errors.append((comments[0][0], f"the block below is {fence['language'] or 'plain'} text: not run"))
            comments = []
    page.errors += [(where, "no block follows this comment") for where, _ in comments]
    return page


def _apply(page: Page, block: CodeBlock, where: int, comment: str) -> None:
    if match := _SKIP.fullmatch(comment):
        if match["line"]:
            _leave_out(page, block, where, match["line"], match["reason"])
        else:
            block.skip = match["reason"]
    elif match := _BACKGROUND.fullmatch(comment):
        block.ready = match["ready"]
    elif match := _PRINTS.fullmatch(comment):
        block.prints.append(match["text"])
    elif match := _BEFORE.fullmatch(comment):
        block.before = match["code"]
    else:
        page.errors.append((where, f"the checker does not know {comment!r}; a skipped block needs a reason"))


def _leave_out(page: Page, block: CodeBlock, where: int, start: str, reason: str) -> None:
    lines = block.text.split("\n")
    found = [number for number, line in enumerate(lines) if line.lstrip().startswith(start)]
    if not found:
        page.errors.append((where, f"no line of the block begins with {start!r}"))
    for number in found:
        block.left_out.append(Skipped(block.page, block.line + number, lines[number].strip(), reason))
        lines[number] = ""
    block.text = "\n".join(lines)


def commands(block: CodeBlock) -> int:
    """Number of commands of a block: lines that are neither empty nor comments nor the rest of another line."""
    lines = [line.strip() for line in block.text.splitlines()]
    if block.language != "sh":
        return 1
    inside = False
    count = 0
    for line in lines:
        if line and not line.startswith("#") and not inside:
            count += 1
        inside = line.endswith("\\")
    return count
