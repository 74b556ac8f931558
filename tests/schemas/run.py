"""Asks a running mesh for an answer of each schema, and lets an independent validator judge the answers."""

import asyncio
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import httpx2
import jsonschema

Json = dict[str, Any]
MAX_TOKENS = 400
AT_ONCE = 16
SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Judged:
    """One answer, judged."""

    name: str
    temperature: float
    finished: bool  # the answer ended by itself; at max_tokens it may be incomplete
    problem: str  # empty: none


def judge(text: str, schema: Any) -> str:
    """Why the text is no JSON of the schema; empty: it is."""
    try:
        jsonschema.validate(
            json.loads(text),
            schema,
            cls=jsonschema.Draft202012Validator,
            format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER,
        )
    except (ValueError, jsonschema.ValidationError) as error:
        return f"{text!r}: {str(error).splitlines()[0]}"
    return ""


async def ask(client: httpx2.AsyncClient, name: str, schema: Any, temperature: float) -> Judged:
    body = {
        "messages": [{"role": "user", "content": f"Write JSON: {name}"}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "case", "schema": schema, "strict": True}},
        "max_tokens": MAX_TOKENS,
        "temperature": temperature,
        "seed": 7,
    }
    reply = await client.post("/v1/chat/completions", json=body)
    if reply.status_code != 200:
        return Judged(name, temperature, False, f"{reply.status_code}: {reply.text[:300]}")
    choice = reply.json()["choices"][0]
    finished = choice["finish_reason"] == "stop"
    return Judged(name, temperature, finished, judge(choice["message"]["content"], schema) if finished else "")


async def ask_all(
    url: str,
    cases: Iterable[tuple[str, Any]],
    *,
    temperatures: tuple[float, ...] = (0.0, 1.0),
    on_answer: Callable[[Judged], None] = lambda answered: None,
) -> list[Judged]:
    places = asyncio.Semaphore(AT_ONCE)
    async with httpx2.AsyncClient(base_url=url, timeout=SECONDS) as client:

        async def one(name: str, schema: Any, temperature: float) -> Judged:
            async with places:
                answered = await ask(client, name, schema, temperature)
            on_answer(answered)
            return answered

        return await asyncio.gather(*(one(*case, heat) for case in cases for heat in temperatures))
