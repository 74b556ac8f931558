"""The endpoints of other chat APIs: a body is translated into a chat completion, and its answer goes back in its shape.

Steps 1 and 8 of a request's life over HTTP. What happens between them is the same for all chats."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, TypeVar

import msgspec

from gateway.answers.answer import Answer
from gateway.core.interface import Core
from gateway.dialects.anthropic.reply import MessagesCountReply, MessagesReply
from gateway.dialects.anthropic.request import AskedMessage, translate_count
from gateway.dialects.anthropic.request import translate as translate_message
from gateway.dialects.anthropic.types import MessagesCountRequest, MessagesRequest
from gateway.dialects.openai.large import BodyParser
from gateway.dialects.openai.reply import Reply
from gateway.dialects.openai.request import HttpCaller, chat_prompt, parse_chat
from gateway.dialects.openai.types import ChatRequest, CommonRequest
from gateway.dialects.responses.reply import ResponsesReply
from gateway.dialects.responses.request import translate as translate_response
from gateway.dialects.responses.types import ResponsesRequest
from gateway.dialects.translation.chat import when_idle
from gateway.dialects.translation.reading import Ignored
from gateway.fairness.loop_turns import Turns
from gateway.http.errors import shown_names
from gateway.prompts.assets import Assets
from gateway.prompts.prompt import encode_chat
from gateway.receipts.receipts import OpenReceipt
from gateway.validation.client_request import ClientRequest
from gateway.validation.validate import ValidRequest, validate
from mesh.errors import InvalidRequest

Body = TypeVar("Body", bound=msgspec.Struct)
Asked = TypeVar("Asked")
CONTINUED = "continue_final_message"


class TranslatedChats:
    def __init__(
        self,
        core: Core,
        parser: BodyParser,
        known: Callable[[HttpCaller, ChatRequest], tuple[HttpCaller, Assets]],
        receipt: Callable[[Sequence[ValidRequest], CommonRequest, HttpCaller], Awaitable[OpenReceipt | None]],
        *,
        random: Random,
        clock: Callable[[], float],
        turns: Turns,
    ) -> None:
        """`known` checks model and request id, names the caller by them, and finds the model's assets. `receipt` is
        the one that the client wants."""
        self._core, self._parser, self._known, self._receipt = core, parser, known, receipt
        self._random, self._clock, self._turns = random, clock, turns

    async def responses(self, raw: bytes, caller: HttpCaller) -> Reply:
        body, asked = await self._asked(raw, ResponsesRequest, translate_response, caller)
        chat = asked.chat
        caller, assets = self._known(caller, chat.body)
        self._core.admit(caller.trace.model)
        request = await parse_chat(chat.body, assets, caller, chat.spelling)
        valid, answer, receipt = await self._begin(request, assets, chat.body, caller)
        return ResponsesReply(body, asked.repeated, valid, answer, assets, clock=self._clock, receipt=receipt)

    async def messages(self, raw: bytes, caller: HttpCaller) -> Reply:
        body, asked = await self._asked(raw, MessagesRequest, translate_message, caller)
        caller, assets = self._known(caller, asked.chat.body)
        self._core.admit(caller.trace.model)
        request = await self._read_message(asked, caller, assets)
        room = self._room(request, assets)
        fills = request.max_tokens is not None and request.max_tokens > room > 0
        request = replace(request, max_tokens=room) if fills else request
        _, answer, receipt = await self._begin(request, assets, asked.chat.body, caller)
        return MessagesReply(
            answer,
            request_id=request.request_id,
            stream=bool(body.stream),
            model=body.model or assets.name,
            shows_thinking=asked.shows_thinking,
            fills_context=fills or request.max_tokens is None,
            receipt=receipt,
        )

    async def count_tokens(self, raw: bytes, caller: HttpCaller) -> Reply:
        _, asked = await self._asked(raw, MessagesCountRequest, translate_count, caller)
        chat = asked.chat
        caller, assets = self._known(caller, chat.body)
        ids, _ = await encode_chat(assets, chat_prompt(chat.body), chat.spelling.chat)
        return MessagesCountReply(caller.request_id, len(ids))

    async def _asked(
        self, raw: bytes, kind: type[Body], translate: Callable[[Body, Ignored], Asked], caller: HttpCaller
    ) -> tuple[Body, Asked]:
        """The body and its translation; the answer names the fields without effect."""
        names = list[str]()
        body = await self._parser.parse(raw, kind, names)
        self._core.admit()
        ignored = Ignored.fromkeys(names)
        values: list[Any] = [getattr(body, name) for name in kind.__struct_fields__]
        asked = await when_idle(partial(translate, body, ignored), values)
        if ignored:
            caller.headers.append((b"x-baton-ignored", shown_names(list(ignored))))
        return body, asked

    async def _read_message(self, asked: AskedMessage, caller: HttpCaller, assets: Assets) -> ClientRequest:
        try:
            return await parse_chat(asked.chat.body, assets, caller, asked.chat.spelling)
        except InvalidRequest as error:
            if error.field != CONTINUED or asked.continued is None:
                raise
            what = (
                "the model's chat template cannot leave it open for the answer to continue; end with a user's message"
            )
            raise InvalidRequest(asked.continued, f"{asked.continued}: {what}") from None

    def _room(self, request: ClientRequest, assets: Assets) -> int:
        """Tokens that context and the largest pool leave for the answer."""
        facts = self._core.facts(assets.name)
        limits = (assets.context_tokens, facts.context_tokens, facts.largest_pool_tokens)
        return min(limit for limit in limits if limit) - len(request.prompt)

    async def _begin(
        self, request: ClientRequest, assets: Assets, body: ChatRequest, caller: HttpCaller
    ) -> tuple[ValidRequest, Answer, OpenReceipt | None]:
        valid = validate(request, self._core, assets, self._random)
        receipt = await self._receipt([valid], body, caller)
        return valid, await Answer.begin(valid, self._core, assets.tokenizer, self._turns), receipt
