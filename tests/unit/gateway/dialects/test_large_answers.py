"""Answers of many megabytes: many choices with the likeliest tokens at each position. While one is made and sent, the
event loop serves every other client."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.answers.events import Delta
from gateway.dialects.common.pieces import encode_pieces
from gateway.dialects.common.sse import encode
from gateway.dialects.openai.answer import NUMBERED, ChatScores, CompletionScores, chat_logprobs, completion_logprobs
from gateway.prompts.assets import load_assets
from mesh.config.door_config import DoorConfig
from mesh.messages.jobs import Token
from tests.harness.longest_pass import LongestPass, best_of
from tests.harness.served_api import served_api
from tests.unit.gateway.emitting_core import EmittingCore

LONGEST_SECONDS = 0.05
TOKENS, TOP, CHOICES = 160, 20, 32
AT_ONCE = 4  # tokens of each choice in one message
READ_BYTES = 1 << 18
EMIT_SECONDS = 60.0


class TextNames:
    """Texts that JSON escapes, and texts of several bytes."""

    def token_text(self, token: int) -> str:
        return ('"', "é", "漢", "\n", "a")[token % 5] * (token % 3)

    def token_bytes(self, token: int) -> bytes:
        return self.token_text(token).encode()


async def read(address: str, path: str, body: dict[str, Any]) -> bytes:
    """The raw answer. A thread reads it, so that no time of the client counts."""
    host, _, port = address.rpartition(":")
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\nconnection: close\r\n"

    def talk() -> bytes:
        with socket.create_connection((host, int(port))) as connected:
            connected.sendall(head.encode() + b"content-length: %d\r\n\r\n" % len(content) + content)
            parts = list[bytes]()
            while part := connected.recv(READ_BYTES):
                parts.append(part)
            return b"".join(parts)

    return await asyncio.to_thread(talk)


@asynccontextmanager
async def large(folder: Path, **changed: int) -> AsyncIterator[tuple[EmittingCore, str]]:
    """`changed`: of the model's config.json."""
    config = json.loads((folder / "config.json").read_text()) | {"max_position_embeddings": 1 << 16} | changed
    (folder / "config.json").write_text(json.dumps(config))
    core = EmittingCore(limits=DoorConfig(reader_kib=1 << 20, max_logprobs=-1))
    async with served_api(core, load_assets(folder, "tiny")) as address:
        yield core, address


async def emit_all(core: EmittingCore, choices: int) -> None:
    """Emits to all choices until each has its tokens; the gateway opens a few of them at a time."""
    async with asyncio.timeout(EMIT_SECONDS):
        while len(core.requests) < choices or core.running:
            core.emit(AT_ONCE, TOP, TOKENS)
            await asyncio.sleep(0.001)


COMMON: dict[str, Any] = {"max_tokens": TOKENS, "temperature": 1, "seed": 1}
CHAT = COMMON | {"messages": [{"role": "user", "content": "x"}], "logprobs": True, "top_logprobs": TOP}
VLLM = {"max_tokens": TOKENS, "seed": 1, "logprobs": TOP}
SGLANG = {"text": "x", "return_logprob": True, "top_logprobs_num": TOP, "return_text_in_logprobs": True}
BODIES: dict[str, tuple[str, dict[str, Any], int]] = {
    "chat": ("/v1/chat/completions", CHAT | {"n": CHOICES}, CHOICES),
    "completions": ("/v1/completions", COMMON | {"prompt": "x", "n": CHOICES, "logprobs": TOP}, CHOICES),
    "prompts": ("/v1/completions", COMMON | {"prompt": ["x"] * CHOICES, "logprobs": TOP}, CHOICES),
    "best of": ("/v1/completions", COMMON | {"prompt": "x", "n": 16, "best_of": CHOICES, "logprobs": TOP}, CHOICES),
    "responses": (
        "/v1/responses",
        {"input": "x", "max_output_tokens": TOKENS, "top_logprobs": TOP, "include": ["message.output_text.logprobs"]},
        1,
    ),
    "vllm": ("/inference/v1/generate", {"token_ids": [120], "sampling_params": VLLM | {"n": CHOICES}}, CHOICES),
    "sglang": ("/generate", SGLANG | {"sampling_params": {"max_new_tokens": TOKENS, "n": CHOICES}}, CHOICES),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("dialect", BODIES)
async def test_no_pass_of_the_loop_is_long_for_a_large_answer(folder: Path, dialect: str, stream: bool) -> None:
    path, body, choices = BODIES[dialect]
    if stream and "best_of" in body:
        body = body | {"best_of": None}  # the API has no stream of the best
        choices = body["n"]

    async def attempt() -> tuple[bytes, float]:
        async with large(folder) as (core, address):
            with LongestPass() as longest:
                reading = asyncio.create_task(read(address, path, body | {"stream": stream}))
                emitting = asyncio.create_task(emit_all(core, choices))
                await asyncio.wait((reading, emitting), return_when=asyncio.FIRST_COMPLETED)
                if not emitting.done():
                    emitting.cancel()
                answer = await reading
                assert answer.startswith(b"HTTP/1.1 200"), answer[:2000]
            return answer, longest.seconds

    answer = await best_of(attempt, LONGEST_SECONDS)
    assert answer.startswith(b"HTTP/1.1 200") and len(answer) > 2 * choices * TOKENS * TOP


VOCABULARY, FEW = 150_000, 2  # tokens and choices that list a whole vocabulary
WIDE_SECONDS = 0.25
WHOLE: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", CHAT | {"top_logprobs": -1, "n": FEW, "max_tokens": FEW}),
    "completions": ("/v1/completions", COMMON | {"prompt": "x", "logprobs": -1, "n": FEW, "max_tokens": FEW}),
    "vllm": (
        "/inference/v1/generate",
        {"token_ids": [120], "sampling_params": {"max_tokens": FEW, "n": FEW, "logprobs": -1}},
    ),
    "sglang": (
        "/generate",
        SGLANG | {"top_logprobs_num": VOCABULARY, "sampling_params": {"max_new_tokens": FEW, "n": FEW}},
    ),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("dialect", WHOLE)
async def test_no_pass_of_the_loop_is_long_where_the_whole_vocabulary_is_listed(
    folder: Path, dialect: str, stream: bool
) -> None:
    path, body = WHOLE[dialect]

    async def emit(core: EmittingCore) -> None:
        while len(core.requests) < FEW or core.running:
            core.emit(1, VOCABULARY, FEW)
            await asyncio.sleep(0.001)

    async def attempt() -> tuple[bytes, float]:
        async with large(folder, vocab_size=VOCABULARY) as (core, address), asyncio.timeout(EMIT_SECONDS):
            with LongestPass() as longest:
                reading = asyncio.create_task(read(address, path, body | {"stream": stream}))
                emitting = asyncio.create_task(emit(core))
                answer = await reading
                emitting.cancel()
            return answer, longest.seconds

    answer = await best_of(attempt, WIDE_SECONDS)
    assert answer.startswith(b"HTTP/1.1 200"), answer[:2000]
    listed = VOCABULARY if dialect != "completions" else 1  # whose objects have equal texts once
    assert len(answer) > 3 * FEW * FEW * listed


@pytest.mark.parametrize("count", [0, 1, 700])
@pytest.mark.parametrize("names", [NUMBERED, TextNames()], ids=["ids", "texts"])
def test_logprobs_that_grow_have_the_bytes_of_those_that_are_encoded_at_once(count: int, names: Any) -> None:
    tokens = tuple(Token(p, p % 50, -p / 7, (1, 2, p), (-0.5, -1.25, -p / 3)) for p in range(count))
    deltas = [Delta(0, tokens[at : at + 3], "", "", offsets=tuple(range(at, at + 3))) for at in range(0, count, 3)]
    chat, completion = ChatScores(names), CompletionScores(names)
    for delta in deltas:
        delta = replace(delta, offsets=delta.offsets[: len(delta.tokens)])
        chat.add(delta)
        completion.add(delta)
    assert b"".join(encode_pieces(chat.whole())) == encode(chat_logprobs(names, tokens))
    at_once = completion_logprobs(names, tokens, [5 + at for at in range(count)])
    assert b"".join(encode_pieces(completion.whole(5, ()))) == encode(at_once)
    before = {"text_offset": [0, 3], "token_logprobs": [None, -0.5], "tokens": ["a", "b"], "top_logprobs": [None, None]}
    echoed = [{name: encode(items)[1:-1] for name, items in before.items()}]
    behind = {name: [*items, *getattr(at_once, name)] for name, items in before.items()}
    assert b"".join(encode_pieces(completion.whole(5, echoed))) == encode(behind)
