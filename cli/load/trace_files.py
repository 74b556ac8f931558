"""Reads public request traces: Azure's LLM inference traces (CSV) and Mooncake's (JSON lines).

Both hold no prompts: arrival times and lengths only, in Mooncake's also which 512-token blocks prompts share. A line
that cannot be read ends the command with the file and the line, since a trace with holes is another load."""

import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from cli.load.plan import LoadError, LoadRequest

AZURE_HEADER = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]


def read_trace(file: Path, most: int | None = None) -> list[LoadRequest]:
    """The first `most` requests in the order of their arrival; the first arrives at 0."""
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LoadError(f"{file}: cannot be read ({error})") from None
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise LoadError(f"{file}: holds no request")
    is_json = numbered[0][1].lstrip().startswith("{")
    requests = sorted(_mooncake(file, numbered) if is_json else _azure(file, numbered), key=_arrival)
    if not requests:
        raise LoadError(f"{file}: holds no request")
    first = _arrival(requests[0])
    return [
        LoadRequest(each.input_tokens, each.output_tokens, _arrival(each) - first, each.blocks)
        for each in requests[:most]
    ]


def _arrival(request: LoadRequest) -> float:
    assert request.at_seconds is not None
    return request.at_seconds


def _azure(file: Path, lines: Iterable[tuple[int, str]]) -> Iterator[LoadRequest]:
    for position, (number, line) in enumerate(lines):
        cells = [cell.strip() for cell in line.split(",")]
        if position == 0:
            if cells != AZURE_HEADER:
                wanted = ",".join(AZURE_HEADER)
                raise LoadError(f"{file}:{number}: is neither JSON nor the header {wanted} of an Azure trace")
            continue
        if len(cells) != 3:
            raise LoadError(f"{file}:{number}: has {len(cells)} cells, not 3")
        try:
            at = datetime.fromisoformat(cells[0])
        except ValueError:
            raise LoadError(f"{file}:{number}: TIMESTAMP {cells[0]!r} is no date and time") from None
        seconds = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
        lengths = [
            _tokens(file, number, name, int(cell) if cell.isdecimal() else cell)
            for name, cell in zip(AZURE_HEADER[1:], cells[1:], strict=True)
        ]
        yield LoadRequest(lengths[0], lengths[1], seconds)


def _mooncake(file: Path, lines: Iterable[tuple[int, str]]) -> Iterator[LoadRequest]:
    for number, line in lines:
        try:
            fields = json.loads(line)
        except ValueError as error:
            raise LoadError(f"{file}:{number}: is no JSON ({error})") from None
        if not isinstance(fields, dict):
            raise LoadError(f"{file}:{number}: is no JSON object")
        at, blocks = fields.get("timestamp"), fields.get("hash_ids", [])
        if not isinstance(at, int | float) or isinstance(at, bool) or not 0 <= at < float("inf"):
            raise LoadError(f"{file}:{number}: timestamp is {at!r}, not milliseconds from 0 on")
        if not isinstance(blocks, list) or not all(type(block) is int for block in blocks):
            raise LoadError(f"{file}:{number}: hash_ids is not a list of whole numbers")
        input_tokens = _tokens(file, number, "input_length", fields.get("input_length"))
        output_tokens = _tokens(file, number, "output_length", fields.get("output_length"))
        yield LoadRequest(input_tokens, output_tokens, at / 1000, tuple(blocks))


def _tokens(file: Path, number: int, name: str, value: object) -> int:
    """A length; traces hold a few zeros, which no server accepts, so they count as one token."""
    if type(value) is not int or value < 0:
        raise LoadError(f"{file}:{number}: {name} is {value!r}, not a number of tokens")
    return max(1, value)
