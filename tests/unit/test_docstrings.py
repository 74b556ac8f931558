"""The first line of a docstring or comment above a name is a sentence whose subject stands in it, not a riddle.

Words such as Of, What or Nobody at its beginning leave the reader to find out who does what. No riddle is a question, a
heading that a colon explains ("What both tiers share: the model and its pages"), the title of a file ("What a prefill
worker knows of each prompt"), or a line in `JUDGED`."""

import ast
import re

import pytest

from tests.unit.sources import Block, docstrings, python_files, tree

OPENERS = ("Of", "What", "Who", "Whoever", "Whose", "Nobody", "None", "As", "So", "There")
RIDDLE = re.compile(rf"({'|'.join(OPENERS)})\b(?! (?:is|are|was|were) no\b)")

# First lines that begin like a riddle and are plain sentences all the same.
JUDGED: set[str] = set()


def is_riddle(text: str) -> bool:
    first = text.strip().split("\n")[0]
    question = re.match(r"[^.:]*\?", text.strip()) is not None
    heading = re.match(r"Wh[^.;,]*: ", text.strip().replace("\n", " ")) is not None
    return RIDDLE.match(first) is not None and not question and not heading and first not in JUDGED


def is_title(block: Block) -> bool:
    """The header of a file may be a noun clause: the file is its subject."""
    return block.line == 1 and block.text.startswith(("What ", "Who "))


def test_docstrings_begin_with_their_subject() -> None:
    found = [
        f"{block.path}:{block.line}: {block.text.strip().split(chr(10))[0]}"
        for path in python_files()
        for block in docstrings(path, tree(path))
        if is_riddle(block.text) and not is_title(block)
    ]
    assert not found, f"{len(found)} docstrings begin with a riddle:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("text", "riddle"),
    [
        ("Of a page's, where this layer begins.", True),
        ("What a worker says of itself.", True),
        ("What a decode worker knows of each request,\nand which moves are legal.", True),
        ("Nobody can take it now: say so.", True),
        ("None of its writes is in flight.", True),
        ("Whoever asks gets an answer.", True),
        ("Byte offset of this layer inside a page.", False),
        ("What does one step cost?", False),
        ("What both tiers share: the model and its pages.", False),
        ("Offset of a page.", False),
        ("Something is wrong.", False),
    ],
)
def test_the_search_tells_riddles_from_sentences(text: str, riddle: bool) -> None:
    module = ast.parse(f'"""{text}"""')
    assert [is_riddle(block.text) for block in docstrings("a.py", module)] == [riddle]
