"""The figures that sections of the GPU run measure, and the report of the whole run: plain values in, Markdown out.

A figure may have a target, and is then met or missed. Sections print each figure as soon as they have it, one JSON line
each, so a section that is cut off loses only the figures that it has not reached."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    value: float
    unit: str  # such as ms, GB/s, "of copy bandwidth", "of FlashInfer's time"
    at_least: float | None = None
    at_most: float | None = None

    @property
    def missed(self) -> bool:
        low, high = self.at_least, self.at_most
        return (low is not None and self.value < low) or (high is not None and self.value > high)

    @property
    def target(self) -> str:
        if self.at_least is not None:
            return f"≥ {self.at_least:g}"
        return "" if self.at_most is None else f"≤ {self.at_most:g}"


@dataclass(frozen=True, slots=True)
class Section:
    """How a section of the run ended."""

    name: str
    figures: tuple[Figure, ...]
    notes: tuple[str, ...]  # reasons why something was not measured
    seconds: float
    problem: str = ""  # empty: the section came to its end

    @property
    def failed(self) -> bool:
        return bool(self.problem) or any(figure.missed for figure in self.figures)


def show(figure: Figure) -> None:
    print(json.dumps({"figure": asdict(figure)}), flush=True)


def note(text: str) -> None:
    print(json.dumps({"note": text}), flush=True)


@contextmanager
def ours(what: str) -> Iterator[None]:
    """A part of a section. When it fails, the section has failed, but its other parts still run."""
    try:
        yield
    except Exception as error:  # any error: the other figures are wanted all the same
        note(f"{what} FAILED: {_first_line(error)}")
        show(Figure(f"{what}: failures", 1, "", at_most=0))


@contextmanager
def a_peers(what: str) -> Iterator[None]:
    """A measurement of somebody else's kernel. When it fails, only its own figure is missing."""
    try:
        yield
    except Exception as error:  # any error of foreign code
        note(f"{what}: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:300]}"


def read_lines(lines: Iterator[str] | Sequence[str]) -> tuple[tuple[Figure, ...], tuple[str, ...]]:
    """The figures and notes in a section's output. Lines that are neither come from libraries and are skipped."""
    figures, notes = list[Figure](), list[str]()
    for line in lines:
        try:
            said = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(said, dict) and "figure" in said:
            figures.append(Figure(**said["figure"]))
        elif isinstance(said, dict) and "note" in said:
            notes.append(said["note"])
    return tuple(figures), tuple(notes)


def pytest_figures(lines: Sequence[str]) -> tuple[tuple[Figure, ...], tuple[str, ...]]:
    """The figures in pytest's output. A run whose tests were all skipped misses its target. The skipped tests and their
    reasons are the notes."""
    closing = next((line for line in reversed(lines) if re.search(r"\d+ (passed|failed|skipped|error)", line)), "")
    counts = {what: int(count) for count, what in re.findall(r"(\d+) (passed|failed|skipped|error)", closing)}
    figures = (
        Figure("tests passed", counts.get("passed", 0), "", at_least=1),
        Figure("tests failed", counts.get("failed", 0) + counts.get("error", 0), "", at_most=0),
        Figure("tests skipped", counts.get("skipped", 0), "their reasons are below"),
    )
    return figures, tuple(line for line in lines if line.startswith("SKIPPED"))


def markdown(about: Mapping[str, Any], sections: Sequence[Section]) -> str:
    lines = [f"# GPU run of {about['date']}", "", f"`bench/gpu/run.sh` on {about['gpu']}: {about['software']}."]
    lines += [f"Measured in the same run: {about['limits']}.", "" if about["real"] else "\nA dry run: no GPU."]
    for section in sections:
        lines += ["", f"## {section.name}", ""]
        if section.problem:
            lines += [f"Did not end: {section.problem}", ""]
        if section.figures:
            lines += ["| figure | measured | | target | |", "|---|---|---|---|---|"]
        for figure in section.figures:
            verdict = "" if not figure.target else "missed" if figure.missed else "met"
            lines.append(f"| {figure.name} | {figure.value:.4g} | {figure.unit} | {figure.target} | {verdict} |")
        lines += ["", *(f"* {text}" for text in section.notes)] if section.notes else []
    return "\n".join(lines).rstrip() + "\n"


def as_json(about: Mapping[str, Any], sections: Sequence[Section]) -> dict[str, Any]:
    return {
        **about,
        "sections": [asdict(section) | {"failed": section.failed} for section in sections],
        "failed": [section.name for section in sections if section.failed],
        "missed": [f"{s.name}: {figure.name}" for s in sections for figure in s.figures if figure.missed],
    }
