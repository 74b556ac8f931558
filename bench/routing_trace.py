"""Requests for bench/routing.py: from a public trace, or conversations that are made up.

Mooncake's traces (JSON lines: timestamp in ms, input_length, output_length, hash_ids) name the prompt's blocks of 512
tokens; equal ids are equal prefixes. Azure's (CSV: TIMESTAMP, ContextTokens, GeneratedTokens) tell lengths only, so no
two prompts share anything. Arrival times are relative: the simulation scales them to the load that it is given."""

import csv
import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from random import Random

BLOCK_TOKENS = 512
SYSTEM_BLOCKS = 3  # blocks in each application's system prompt
APPLICATIONS = 8


@dataclass(frozen=True, slots=True)
class TraceRow:
    seconds: float  # since the first request
    tokens: int  # length of the prompt
    answer: int  # tokens
    blocks: tuple[bytes, ...]  # names of the prompt's full blocks


def read_trace(path: Path, *, rounds: int, count: int) -> list[list[TraceRow]]:
    """The first requests of a trace: `count` for each round, none of them twice."""
    rows = _mooncake(path) if path.suffix == ".jsonl" else _azure(path)
    if len(rows) < rounds * count:
        raise SystemExit(
            f"--trace: {path} has {len(rows)} requests, and {rounds} rounds of {count} need {rounds * count}: "
            "name fewer --requests or --rounds, or a longer trace"
        )
    return [rows[first : first + count] for first in range(0, rounds * count, count)]


def _mooncake(path: Path) -> list[TraceRow]:
    found = list[TraceRow]()
    for line in path.read_text("utf-8").splitlines():
        row = json.loads(line)
        full = row["input_length"] // BLOCK_TOKENS
        blocks = tuple(int(each).to_bytes(16, "little") for each in row["hash_ids"][:full])
        found.append(TraceRow(row["timestamp"] / 1000, row["input_length"], row["output_length"], blocks))
    return found


def _azure(path: Path) -> list[TraceRow]:
    found, began = list[TraceRow](), None
    with path.open(encoding="utf-8", newline="") as file:
        for number, row in enumerate(csv.DictReader(file)):
            at = datetime.fromisoformat(row["TIMESTAMP"][:26])
            began = began or at
            tokens = max(1, int(row["ContextTokens"]))
            blocks = tuple((number << 32 | i).to_bytes(16, "little") for i in range(tokens // BLOCK_TOKENS))
            found.append(TraceRow((at - began).total_seconds(), tokens, max(1, int(row["GeneratedTokens"])), blocks))
    return found


def conversations(count: int, random: Random) -> list[TraceRow]:
    """Users of a few applications, each with a system prompt, who ask again below what was said so far."""
    systems = [tuple(random.randbytes(16) for _ in range(SYSTEM_BLOCKS)) for _ in range(APPLICATIONS)]
    found, running, now = list[TraceRow](), list[tuple[bytes, ...]](), 0.0
    while len(found) < count:
        now += random.expovariate(1.0)
        again = running and random.random() < 0.7
        before = running.pop(random.randrange(len(running))) if again else random.choice(systems)
        said = before + tuple(random.randbytes(16) for _ in range(random.randrange(1, 6)))
        rest = random.randrange(BLOCK_TOKENS)
        found.append(TraceRow(now, len(said) * BLOCK_TOKENS + rest, random.randrange(50, 600), said))
        if len(said) < 40:
            running.append(said)
    return found
