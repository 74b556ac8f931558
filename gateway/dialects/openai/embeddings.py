"""`POST /v1/embeddings`: inputs become token ids, embeddings become numbers or base64 of their bytes."""

import asyncio
import base64
import struct
from collections.abc import AsyncGenerator
from typing import Any

from gateway.answers.embedding import Embeddings, EmbedRequest, check_count
from gateway.dialects.common.pieces import JsonPieces
from gateway.dialects.common.sse import encode
from gateway.dialects.described.answers import CachedTokens, EmbeddedInput, EmbeddingAnswer, EmbeddingUsage
from gateway.dialects.openai.answer import fingerprint_of
from gateway.dialects.openai.request import CHAT_FIELDS, HttpCaller, cut_of
from gateway.dialects.openai.types import EmbeddingRequest
from gateway.prompts.assets import Assets
from gateway.prompts.lengths import validate_length
from gateway.prompts.prompt import ChatPrompt, encode_chat
from gateway.prompts.truncation import Truncation, encode_cut
from mesh.errors import InvalidRequest, brief

FORMATS = ("float", "base64")


async def parse_embedding(body: EmbeddingRequest, assets: Assets, caller: HttpCaller) -> EmbedRequest:
    if body.encoding_format not in (None, *FORMATS):
        what = f"encoding_format must be {' or '.join(FORMATS)}, not {brief(repr(body.encoding_format))}"
        raise InvalidRequest("encoding_format", what)
    cut = cut_of(body, caller.context_tokens or assets.context_tokens, 0)
    inputs = [await _chat(body, assets, cut)] if body.messages is not None else await _inputs(body, assets, cut)
    return EmbedRequest(
        caller.request_id,
        tuple(inputs),
        body.model,
        body.dimensions,
        body.cache_salt or "",
        body.priority or 0,
        caller.seconds_left,
        trace=caller.trace,
        field="input" if body.messages is None else "messages",
    )


async def _inputs(body: EmbeddingRequest, assets: Assets, cut: Truncation | None) -> list[tuple[int, ...]]:
    inputs, special = list[tuple[int, ...]](), body.add_special_tokens is not False
    for name in ("chat_template", "chat_template_kwargs", "add_generation_prompt"):
        if getattr(body, name) is not None:
            raise InvalidRequest(name, f"{name} belongs to messages, and this request has input")
    for entry in _entries(body.input, None if cut else assets.context_tokens):
        if isinstance(entry, str):
            inputs.append(await encode_cut(assets, entry, cut, field="input", special=special))
            await asyncio.sleep(0)  # others have their turn between two texts
        else:
            inputs.append(entry if cut is None else cut.cut(entry))
    return inputs


async def _chat(body: EmbeddingRequest, assets: Assets, cut: Truncation | None) -> tuple[int, ...]:
    """The chat as one input; unlike a prompt it does not open an answer."""
    if body.input is not None:
        raise InvalidRequest("messages", "messages and input exclude each other: send one of them")
    chat = ChatPrompt(
        messages=body.messages or (),
        template_arguments=body.chat_template_kwargs,
        add_generation_prompt=bool(body.add_generation_prompt),
        template=body.chat_template,
        special=bool(body.add_special_tokens),
    )
    ids, _ = await encode_chat(assets, chat, CHAT_FIELDS)
    return ids if cut is None else cut.cut(ids)


def _entries(value: str | list[str | int | list[int]] | None, context: int | None) -> list[str | tuple[int, ...]]:
    """`context`: its limit; None: the inputs will be cut."""
    if value is None:
        raise InvalidRequest("input", "input is missing: text, a list of texts, token ids, or a list of those")
    if isinstance(value, str):
        return [value]
    kinds = {type(entry) for entry in value}
    if len(kinds) != 1:
        what = "input must be a list of texts, of token ids, or of lists of token ids; not empty, not mixed"
        raise InvalidRequest("input", what)
    if kinds == {int}:
        if context is not None:
            validate_length("input", len(value), context, answer=False)
        return [tuple(entry for entry in value if isinstance(entry, int))]
    check_count("input", len(value))
    return [entry if isinstance(entry, str) else tuple(entry) for entry in value if not isinstance(entry, int)]


class EmbeddingReply:
    stream = False

    def __init__(self, body: EmbeddingRequest, embeddings: Embeddings, caller: HttpCaller, *, model: str) -> None:
        self.request_id, self._model = caller.request_id, model
        self._embeddings, self._packed = embeddings, body.encoding_format == "base64"

    async def whole(self) -> EmbeddingAnswer:
        entries = list[bytes]()
        for index, values in enumerate(await self._embeddings.values()):
            entries.append(encode(EmbeddedInput("embedding", index, self._spell(values))))
            await asyncio.sleep(0)  # thousands of numbers each
        tokens = self._embeddings.prompt_tokens
        data: Any = JsonPieces.of_items(entries)  # they stand where the type wants a list
        return EmbeddingAnswer(
            id=f"embd-{self.request_id}",
            object="list",
            data=data,
            model=self._model,
            usage=EmbeddingUsage(tokens, tokens, CachedTokens(self._embeddings.cached_tokens)),
            system_fingerprint=fingerprint_of(self._embeddings.numerics),
        )

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """Yields nothing: embeddings are never streamed."""
        for frame in list[bytes]():
            yield frame

    def _spell(self, values: bytes) -> str | tuple[float, ...]:
        if self._packed:
            return base64.b64encode(values).decode()
        return struct.unpack(f"<{len(values) // 4}f", values)

    def cancel(self) -> None:
        self._embeddings.cancel()
