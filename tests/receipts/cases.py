"""Requests whose answers `make receipts` replays: sampled, with tool calls, as JSON, with two choices, and in the other
APIs; whole, streamed and over gRPC."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
STARTS = ("Once upon a time", "The mesh has", "A page is", "Count from 3 to 9:", "Prefill workers", "Zwölf Körbe 🧺")
QUESTIONS = ("How many decode workers run?", "What is the hand-off?", "Which tier is busy?", "Say hello.")
SCHEMAS: tuple[Json, ...] = (
    {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
     "required": ["name", "age"], "additionalProperties": False},
    {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 1, "maxItems": 4},
)  # fmt: skip
TOOLS: list[Json] = [
    {
        "type": "function",
        "function": {
            "name": "mesh_status",
            "description": "Look at the workers of a tier",
            "strict": True,
            "parameters": {
                "type": "object",
                "properties": {"tier": {"type": "string", "enum": ["prefill", "decode"]}},
                "required": ["tier"],
                "additionalProperties": False,
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "paint",
            "parameters": {
                "type": "object",
                "properties": {"colours": {"type": "array", "maxItems": 3, "items": {"enum": ["red", "blue"]}}},
            },
        },
    },
]


SEED = 11


@dataclass(frozen=True, slots=True)
class ReceiptCase:
    kind: str  # sampled, tools, json, choices, or the path of another API
    door: str  # whole, stream, grpc
    path: str  # HTTP path; empty over gRPC
    body: Json  # body of an HTTP request, or a GenerateRequest as JSON

    @property
    def plain_text(self) -> str | None:
        """The prompt, where it and the receipt are all that a replay needs."""
        return self.body.get("prompt" if self.door != "grpc" else "text") if self.kind == "sampled" else None


def cases(count: int, seed: int = SEED) -> Iterator[ReceiptCase]:
    """Equal for equal seeds."""
    draw = random.Random(seed)
    kinds = (_sampled, _tools, _json, _choices, None)
    others = (_response, _message, _tokens, _sglang)
    for number in range(count):
        make = kinds[number % len(kinds)] or others[number // len(kinds) % len(others)]
        door = ("whole", "stream", "grpc")[number // len(kinds) % 3]
        if door == "grpc" and make not in (_sampled, _choices):
            door = "whole"  # the others are of HTTP
        yield make(draw, door)


def _numbers(draw: random.Random) -> Json:
    numbers: Json = {"temperature": draw.choice((0.7, 1.0, 1.3)), "top_p": draw.choice((0.9, 1.0))}
    return numbers | {"top_k": draw.choice((0, 40))} | ({"seed": draw.getrandbits(63)} if draw.random() < 0.5 else {})


def _sampled(draw: random.Random, door: str) -> ReceiptCase:
    text, numbers, most = draw.choice(STARTS), _numbers(draw), draw.randint(8, 40)
    if door == "grpc":
        body = {"text": text, "sampling": numbers, "stop": {"max_tokens": most}}
        return ReceiptCase("sampled", door, "", body)
    penalties = {"frequency_penalty": 0.5, "repetition_penalty": 1.1} if draw.random() < 0.5 else {}
    return ReceiptCase("sampled", door, "/v1/completions", {"prompt": text, "max_tokens": most} | numbers | penalties)


def _tools(draw: random.Random, door: str) -> ReceiptCase:
    choice: Any = draw.choice(("auto", "required", {"type": "function", "function": {"name": "paint"}}))
    body = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": draw.random() < 0.5, "max_tokens": 60}
    return ReceiptCase("tools", door, "/v1/chat/completions", _question(draw) | body | _numbers(draw))


def _json(draw: random.Random, door: str) -> ReceiptCase:
    schema = {"type": "json_schema", "json_schema": {"name": "case", "schema": draw.choice(SCHEMAS), "strict": True}}
    body = {"response_format": schema, "max_tokens": 60}
    return ReceiptCase("json", door, "/v1/chat/completions", _question(draw) | body | _numbers(draw))


def _choices(draw: random.Random, door: str) -> ReceiptCase:
    numbers = _numbers(draw)
    if door == "grpc":
        body = {
            "text": draw.choice(STARTS),
            "sampling": numbers | {"n": 2},
            "stop": {"max_tokens": 20, "strings": ["."]},
        }
        return ReceiptCase("choices", door, "", body)
    body = {"prompt": list(draw.sample(STARTS, 2)), "n": 2, "max_tokens": 16}
    body |= {"stop": [".", " the"], "logit_bias": {"12": -5}}
    if door == "whole":
        body["best_of"] = 3
    return ReceiptCase("choices", door, "/v1/completions", body | numbers)


def _response(draw: random.Random, door: str) -> ReceiptCase:
    form = {"type": "json_schema", "name": "case", "schema": draw.choice(SCHEMAS), "strict": True}
    body: Json = {"input": draw.choice(QUESTIONS), "instructions": "Be brief.", "max_output_tokens": 60}
    body |= {"text": {"format": form}} if draw.random() < 0.5 else {}
    return ReceiptCase("/v1/responses", door, "/v1/responses", body | _numbers(draw))


def _message(draw: random.Random, door: str) -> ReceiptCase:
    function = TOOLS[0]["function"]
    tool = {"name": function["name"], "description": function["description"], "input_schema": function["parameters"]}
    body = {"system": "Be brief.", "max_tokens": 100_000, "stop_sequences": ["!"], "tools": [tool]}
    return ReceiptCase("/v1/messages", door, "/v1/messages", _question(draw) | body | _numbers(draw))


def _tokens(draw: random.Random, door: str) -> ReceiptCase:
    ids = [draw.randrange(300, 400) for _ in range(8)]
    body = {"token_ids": ids, "sampling_params": {"n": 2, "max_tokens": 20} | _numbers(draw)}
    return ReceiptCase("/inference/v1/generate", door, "/inference/v1/generate", body)


def _sglang(draw: random.Random, door: str) -> ReceiptCase:
    numbers = _numbers(draw)
    numbers |= {"sampling_seed": numbers.pop("seed")} if "seed" in numbers else {}
    body = {"text": list(draw.sample(STARTS, 2)), "sampling_params": {"max_new_tokens": 20} | numbers}
    return ReceiptCase("/generate", door, "/generate", body)


def _question(draw: random.Random) -> Json:
    return {"messages": [{"role": "user", "content": draw.choice(QUESTIONS)}]}
