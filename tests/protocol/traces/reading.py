"""Reads the message logs of a mesh (mesh/network/message_log.py): the lines of each process, and whether all of them
are there.

A log is complete if its lines are numbered without a gap. The last line may be cut: then its process was killed while
it wrote, and what the line tells had not happened yet."""

import json
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

STOOD_STILL_SECONDS = 3.0  # without any line: a process sends a heartbeat each second in each of its sessions
OUTLIVED_SECONDS = 0.2  # others log for so long after the last line of a killed process

Line = dict[str, Any]


class BadTrace(Exception):
    """The trace cannot be checked, so it proves nothing."""


@dataclass(frozen=True, slots=True)
class ProcessTrace:
    """The log of one process."""

    tier: str
    name: str
    incarnation: int
    lines: list[Line] = field(repr=False)

    @property
    def last_seconds(self) -> float:
        return float(self.lines[-1]["seconds"])

    @property
    def exited(self) -> bool:
        """It ended by itself; else it was killed, or it still runs."""
        return bool(self.lines[-1]["what"] == "exit")

    @property
    def stood_still(self) -> int:
        """How often it logged nothing for so long, though it had sessions, and went on."""
        times = [float(line["seconds"]) for line in self.lines if line["what"] in ("send", "receive", "end")]
        return sum(later - earlier > STOOD_STILL_SECONDS for earlier, later in pairwise(times))


def read_log(text: bytes, source: str) -> ProcessTrace:
    """The lines of one file; BadTrace where one is missing."""
    *whole, _ = text.split(b"\n")
    lines = list[Line]()
    for number, raw in enumerate(whole):
        try:
            line = json.loads(raw)
        except ValueError:
            raise BadTrace(f"{source}: line {number} is damaged: the recorder lost a part of it") from None
        if line["number"] != number:
            raise BadTrace(f"{source}: the recorder lost lines {number} to {line['number'] - 1}")
        lines.append(line)
    if not lines or lines[0]["what"] != "start":
        raise BadTrace(f"{source}: its first line is missing")
    first = lines[0]
    return ProcessTrace(first["tier"], first["name"], first["incarnation"], lines)


def read_mesh(folder: Path) -> list[ProcessTrace]:
    return [read_log(file.read_bytes(), file.name) for file in sorted(folder.glob("*.jsonl"))]


def meshes_below(folder: Path) -> list[Path]:
    """This folder and those below it, as far as they hold logs. Each is the trace of one mesh."""
    return sorted({file.parent for file in folder.rglob("*.jsonl")})


def killed(processes: list[ProcessTrace]) -> list[ProcessTrace]:
    """Those that did not end by themselves while others went on."""
    end = max((each.last_seconds for each in processes), default=0.0)
    return [each for each in processes if not each.exited and end - each.last_seconds > OUTLIVED_SECONDS]
