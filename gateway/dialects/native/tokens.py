"""The model's tokenizer over HTTP, as vLLM serves it: `/tokenize`, `/detokenize` and `/tokenizer_info`.

A text or chat becomes exactly the tokens that a completion or a chat would compute. Long ones are tokenized off the
event loop."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from gateway.core.interface import Core
from gateway.dialects.common.plain_post import AnsweredAtOnce, HttpHost
from gateway.dialects.common.sse import encode
from gateway.dialects.described.native import DetokenizeAnswer, TokenizeAnswer
from gateway.dialects.endpoints.paths import routes_of
from gateway.dialects.info import error_page
from gateway.dialects.native.types import DetokenizeBody, TokenizeBody
from gateway.dialects.openai.request import CHAT_FIELDS, HttpCaller
from gateway.prompts.assets import Assets
from gateway.prompts.by_model import ModelAssets
from gateway.prompts.lengths import validate_length
from gateway.prompts.prompt import LONG_CHARACTERS, ChatPrompt, encode_chat, encode_text
from gateway.text.templates import DEFAULT
from gateway.validation.validate import validate_model
from mesh.errors import BatonError, InvalidRequest

Parse = Callable[..., Awaitable[Any]]  # parses a body: its bytes, its type and its caller
MODEL = "model"  # parameter of /tokenizer_info
_OF_CHATS = ("add_generation_prompt", "continue_final_message", "chat_template", "chat_template_kwargs", "tools")


class TokenizerPages:
    def __init__(self, host: HttpHost, core: Core, models: ModelAssets, parse: Parse) -> None:
        self._host = host
        self._core = core
        self._models = models
        self._parse = parse

    def routes(self) -> list[BaseRoute]:
        return routes_of(
            {
                "/tokenize": AnsweredAtOnce(self._host, self._tokenize),
                "/detokenize": AnsweredAtOnce(self._host, self._detokenize),
                "/tokenizer_info": self._info,
            }
        )

    async def _tokenize(self, raw: bytes, caller: HttpCaller) -> bytes:
        body: TokenizeBody = await self._parse(raw, TokenizeBody, caller)
        assets = self._models.of(validate_model(self._core, body.model))
        if (body.prompt is None) == (body.messages is None):
            what = "is missing: send prompt or messages" if body.prompt is None else "and messages exclude each other"
            raise InvalidRequest("prompt", f"prompt {what}")
        if body.prompt is None:
            ids = await _chat_ids(body, assets)
        else:
            for name in _OF_CHATS:
                if getattr(body, name) is not None:
                    raise InvalidRequest(name, f"{name} goes with messages; a prompt is tokenized as it is")
            special = body.add_special_tokens is not False
            ids = await encode_text(assets, body.prompt, field="prompt", special=special)
        names = await _in_thread(ids, partial(_names, assets)) if body.return_token_strs else None
        context = self._core.facts(assets.name).context(assets.context_tokens)
        return encode(TokenizeAnswer(len(ids), context, ids, names))

    async def _detokenize(self, raw: bytes, caller: HttpCaller) -> bytes:
        body: DetokenizeBody = await self._parse(raw, DetokenizeBody, caller)
        assets = self._models.of(validate_model(self._core, body.model))
        ids, vocabulary = body.tokens, assets.vocabulary
        if ids is None:
            raise InvalidRequest("tokens", "tokens is missing: a list of token ids")
        validate_length("tokens", len(ids), assets.context_tokens, answer=False)
        if ids and not 0 <= min(ids) <= max(ids) < vocabulary:
            wrong = next(token for token in ids if not 0 <= token < vocabulary)
            what = f"tokens holds token id {wrong}; the vocabulary has ids 0 to {vocabulary - 1}"
            raise InvalidRequest("tokens", what)
        return encode(DetokenizeAnswer(await _in_thread(ids, partial(_text, assets))))

    async def _info(self, request: Request) -> Response:
        try:
            assets = self._models.of(validate_model(self._core, request.query_params.get(MODEL)))
        except BatonError as error:
            return error_page(error)
        return Response(encode(tokenizer_info(assets)), media_type="application/json")


async def _chat_ids(body: TokenizeBody, assets: Assets) -> tuple[int, ...]:
    chat = ChatPrompt(
        messages=body.messages or (),
        tools=body.tools or (),
        template_arguments=body.chat_template_kwargs,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=bool(body.continue_final_message),
        template=body.chat_template,
        special=bool(body.add_special_tokens),
    )
    return (await encode_chat(assets, chat, CHAT_FIELDS))[0]


async def _in_thread(ids: Sequence[int], work: Callable[[Sequence[int]], Any]) -> Any:
    return work(ids) if len(ids) < LONG_CHARACTERS else await asyncio.to_thread(work, ids)


def _names(assets: Assets, ids: Sequence[int]) -> list[str]:
    return [assets.tokenizer.name_of(token) for token in ids]


def _text(assets: Assets, ids: Sequence[int]) -> str:
    """Special tokens are shown, as vLLM does."""
    return assets.tokenizer.decode(ids, skip_special=False)


def tokenizer_info(assets: Assets) -> dict[str, Any]:
    """tokenizer_config.json, with special tokens as texts, the chat template, and the end of sequence in any case:
    clients that tokenize here look for it."""
    config = {name: _text_of(value) for name, value in assets.tokenizer_config.items()}
    found: dict[str, Any] = {**config, **assets.special}
    found["tokenizer_class"] = found.get("tokenizer_class") or "PreTrainedTokenizerFast"
    if (template := assets.templates.get(DEFAULT)) is not None:
        found["chat_template"] = template.source
    if "eos_token" not in found and assets.eos_ids:
        found["eos_token"] = assets.tokenizer.name_of(assets.eos_ids[0])
    return found


def _text_of(value: Any) -> Any:
    """A special token that is written with its properties, as its text; anything else as it is."""
    return value["content"] if isinstance(value, dict) and isinstance(value.get("content"), str) else value
