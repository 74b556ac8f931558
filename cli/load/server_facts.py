"""Asks a server before the run for its model, its context, and whether it is a Baton gateway."""

from dataclasses import dataclass
from typing import Any

from cli.connecting.answer_text import message_of, printable
from cli.connecting.http_client import RequestFailed
from cli.load.plan import LoadError
from cli.load.target import LoadTarget

LOOK_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class ServerFacts:
    model: str
    context_tokens: int | None  # None: the server does not tell it
    workers: tuple[int, int] | None  # prefill and decode workers of a Baton gateway
    notes: tuple[str, ...]


async def look_at(target: LoadTarget, model: str | None) -> ServerFacts:
    """LoadError where the server cannot be reached or does not serve the model."""
    try:
        status, answer = await target.fetch("GET", f"{target.url.path}/models", seconds=LOOK_SECONDS)
    except RequestFailed as error:
        raise LoadError(f"{target.url}: {error}") from None
    if status in (401, 403):
        raise LoadError(f"{target.url}: HTTP {status}: {message_of(answer) or 'refused'}; give a key with --api-key")
    entries = _entries(answer) if status == 200 else {}
    if not entries and model is None:
        raise LoadError(
            f"{target.url}/models: HTTP {status} with no list of models; is this the base URL of an OpenAI API "
            "(it ends with /v1)? If so, name the model with --model"
        )
    if entries and model is not None and model not in entries:
        raise LoadError(f"{target.url} does not serve {model!r}; it serves {', '.join(map(printable, entries))}")
    name = model if model is not None else next(iter(entries))
    context = _context(entries.get(name, {}))
    notes = () if context else ("The server does not tell the model's context: long requests are not shortened.",)
    return ServerFacts(name, context, await _tiers(target), notes)


def _entries(answer: Any) -> dict[str, dict[str, Any]]:
    data = answer.get("data") if isinstance(answer, dict) else None
    found = [entry for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []
    return {entry["id"]: entry for entry in found if isinstance(entry.get("id"), str)}


def _context(entry: dict[str, Any]) -> int | None:
    """vLLM, SGLang and Baton tell max_model_len; llama.cpp tells the context of its slots in meta."""
    meta = entry.get("meta")
    of_llama = [meta.get("n_ctx"), meta.get("n_ctx_train")] if isinstance(meta, dict) else []
    for value in (entry.get("max_model_len"), *of_llama, entry.get("context_length")):
        if type(value) is int and value > 1:
            return value
    return None


async def _tiers(target: LoadTarget) -> tuple[int, int] | None:
    """A Baton gateway tells its numbers of workers at /health; others have no such answer."""
    try:
        status, answer = await target.fetch("GET", "/health", seconds=LOOK_SECONDS)
    except RequestFailed:
        return None
    if status != 200 or not isinstance(answer, dict):
        return None
    prefill, decode = answer.get("prefill"), answer.get("decode")
    return (prefill, decode) if type(prefill) is int and type(decode) is int else None
