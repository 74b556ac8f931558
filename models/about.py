"""What the model knows about Baton, read from about.toml: the demo's subject first, then all others."""

import tomllib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Subject:
    answer: str
    short: str  # the answer when the question or the system prompt wants a brief one
    names: tuple[str, ...] = ()
    questions: tuple[str, ...] = ()


def _read(file: Path) -> tuple[Subject, ...]:
    return tuple(
        Subject(raw["answer"], raw["short"], tuple(raw.get("names", ())), tuple(raw.get("questions", ())))
        for raw in tomllib.loads(file.read_text())["subject"]
    )


BATON, *_OTHERS = _read(Path(__file__).with_name("about.toml"))
SUBJECTS: tuple[Subject, ...] = tuple(_OTHERS)
