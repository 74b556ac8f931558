"""CountTokens, Tokenize and Detokenize: the model's tokenizer for clients that have none.

A text or chat becomes exactly the tokens that Generate would compute."""

import asyncio
from typing import Any

from baton.inference.v1 import inference_pb2 as pb
from gateway.core.interface import Core
from gateway.grpc.calls import answered
from gateway.grpc.conversation import CHAT_FIELDS, parse_conversation
from gateway.grpc.prompt import encode_conversation, ids_of
from gateway.prompts.by_model import ModelAssets
from gateway.prompts.prompt import LONG_CHARACTERS, encode_text
from gateway.validation.validate import validate_model
from mesh.errors import InvalidRequest


class Tokenizing:
    def __init__(self, core: Core, models: ModelAssets, random: Any) -> None:
        self._core = core
        self._models = models
        self._random = random

    async def count(self, raw: bytes, context: Any) -> pb.CountTokensResponse:
        async with answered(raw, context, self._core, self._random) as call:
            request = await call.message(pb.CountTokensRequest)
            ids = await self._ids(request)
        return pb.CountTokensResponse(tokens=len(ids), context_tokens=self._context_tokens(request.model))

    async def encode(self, raw: bytes, context: Any) -> pb.TokenizeResponse:
        async with answered(raw, context, self._core, self._random) as call:
            request = await call.message(pb.TokenizeRequest)
            ids = await self._ids(request)
        return pb.TokenizeResponse(token_ids=ids, context_tokens=self._context_tokens(request.model))

    async def decode(self, raw: bytes, context: Any) -> pb.DetokenizeResponse:
        async with answered(raw, context, self._core, self._random) as call:
            request = await call.message(pb.DetokenizeRequest)
            text = await self._text(request)
        return pb.DetokenizeResponse(text=text)

    async def _ids(self, request: pb.CountTokensRequest | pb.TokenizeRequest) -> tuple[int, ...]:
        assets = self._models.of(validate_model(self._core, request.model))
        kind = request.WhichOneof("input")
        special = request.add_special_tokens if request.HasField("add_special_tokens") else kind == "text"
        if kind == "text":
            return await encode_text(assets, request.text, field="text", special=special)
        if kind == "chat":
            chat = await parse_conversation(request.chat, assets.context_tokens, special=special)
            return (await encode_conversation(chat, assets))[0]
        raise InvalidRequest("input", f"input is missing: set text or {CHAT_FIELDS.messages.partition('.')[0]}")

    async def _text(self, request: pb.DetokenizeRequest) -> str:
        assets = self._models.of(validate_model(self._core, request.model))
        ids = await ids_of("token_ids", request.token_ids, assets.context_tokens)
        vocabulary = assets.vocabulary
        if ids and max(ids) >= vocabulary:
            what = f"token_ids holds token id {max(ids)}; the vocabulary has ids 0 to {vocabulary - 1}"
            raise InvalidRequest("token_ids", what)
        decode = assets.tokenizer.decode
        if len(ids) < LONG_CHARACTERS:
            return decode(ids, skip_special=request.skip_special_tokens)
        return await asyncio.to_thread(decode, ids, skip_special=request.skip_special_tokens)

    def _context_tokens(self, model: str) -> int:
        name = validate_model(self._core, model)
        return self._core.facts(name).context(self._models.of(name).context_tokens)
