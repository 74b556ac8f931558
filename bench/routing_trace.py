"""Requests for bench/routing.py: from a public trace (cli/load/trace_files.py), or conversations that are made up.

Equal blocks are equal prefixes; the prompts of a trace that names none share nothing. Arrival times are relative: the
simulation scales them to the load that it is given."""

from dataclasses import dataclass
from pathlib import Path
from random import Random

from cli.load import trace_files
from cli.load.plan import BLOCK_TOKENS, LoadError, LoadRequest

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
    rows = [_row(number, request) for number, request in enumerate(trace_files.read_trace(path))]
    if len(rows) < rounds * count:
        raise LoadError(
            f"--trace: {path} has {len(rows)} requests, and {rounds} rounds of {count} need {rounds * count}: "
            "name fewer --requests or --rounds, or a longer trace"
        )
    return [rows[first : first + count] for first in range(0, rounds * count, count)]


def _row(number: int, request: LoadRequest) -> TraceRow:
    full = request.input_tokens // BLOCK_TOKENS
    ids = request.blocks[:full] or [number << 32 | i for i in range(full)]
    blocks = tuple(each.to_bytes(16, "little") for each in ids)
    return TraceRow(request.at_seconds or 0.0, request.input_tokens, request.output_tokens, blocks)


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
