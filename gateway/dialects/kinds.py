"""The parts of the way that each endpoint which generates has of its own: steps 1 and 8 of a request's life over HTTP.

gateway/dialects/opening.py calls these, in the order of their methods."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec

from gateway.answers.answer import Answer
from gateway.dialects.anthropic.reply import MessagesReply
from gateway.dialects.anthropic.request import translate as translate_message
from gateway.dialects.anthropic.request import translate_count
from gateway.dialects.anthropic.types import MessagesCountRequest, MessagesRequest
from gateway.dialects.native.dialect import CompletionDialect
from gateway.dialects.ollama.reply import OllamaReply
from gateway.dialects.ollama.request import NAMES, AskedOllama, as_completion, translate_chat, translate_generate
from gateway.dialects.ollama.types import OllamaChatRequest, OllamaGenerateRequest, OllamaShared
from gateway.dialects.openai.chat_reply import ChatReply
from gateway.dialects.openai.completion_reply import CompletionReply
from gateway.dialects.openai.reply import Reply
from gateway.dialects.openai.request import HttpCaller, parse_chat, parse_completion
from gateway.dialects.openai.types import ChatRequest, CompletionRequest
from gateway.dialects.opening import BegunAnswers, Clock, Opened
from gateway.dialects.responses.keeping import KeptResponse, ResponseKeeping
from gateway.dialects.responses.reply import ResponsesReply
from gateway.dialects.responses.request import translate as translate_response
from gateway.dialects.responses.types import ResponsesRequest
from gateway.dialects.translation.chat import when_idle
from gateway.dialects.translation.reading import Ignored
from gateway.validation.client_request import ClientRequest
from mesh.errors import InvalidRequest

Body = TypeVar("Body", bound=msgspec.Struct)
OllamaBody = TypeVar("OllamaBody", bound=OllamaShared)
CONTINUED = "continue_final_message"


class Chat:
    body = ChatRequest

    async def translate(self, body: ChatRequest, ignored: Ignored, caller: HttpCaller) -> tuple[ChatRequest, None]:
        return body, None

    async def read(self, opened: Opened[ChatRequest]) -> Sequence[ClientRequest]:
        return [await parse_chat(opened.body, opened.assets, opened.caller)]

    def reply(self, opened: Opened[ChatRequest], begun: BegunAnswers) -> Reply:
        return ChatReply(opened.body, begun.pairs, opened.assets, created=begun.created, receipt=begun.receipt)


class Completion:
    body = CompletionRequest

    async def translate(
        self, body: CompletionRequest, ignored: Ignored, caller: HttpCaller
    ) -> tuple[CompletionRequest, None]:
        return body, None

    async def read(self, opened: Opened[CompletionRequest]) -> Sequence[ClientRequest]:
        return await parse_completion(opened.body, opened.assets, opened.caller)

    def reply(self, opened: Opened[CompletionRequest], begun: BegunAnswers) -> Reply:
        return CompletionReply(opened.body, begun.pairs, opened.assets, created=begun.created, receipt=begun.receipt)


class Native(Generic[Body]):
    """A dialect that is a completion under other names."""

    def __init__(self, dialect: CompletionDialect[Body]) -> None:
        self.body, self._dialect = dialect.body, dialect

    async def translate(self, body: Body, ignored: Ignored, caller: HttpCaller) -> tuple[CompletionRequest, None]:
        names = list[str]()
        plain = self._dialect.translate(body, names)
        ignored.update(dict.fromkeys(names))
        return plain, None

    async def read(self, opened: Opened[Body]) -> Sequence[ClientRequest]:
        dialect = self._dialect
        context = opened.context
        pool = opened.facts.largest_pool_tokens
        dialect.check(opened.body, opened.plain, opened.limits, context)
        room = min(context, pool or context)
        return await dialect.requests(opened.body, opened.plain, opened.assets, opened.caller, room=room)

    def reply(self, opened: Opened[Body], begun: BegunAnswers) -> Reply:
        body = opened.body
        plain = opened.plain
        assets = opened.assets
        return self._dialect.reply(body, plain, begun.pairs, assets, begun.created, begun.receipt)


class Responses:
    body = ResponsesRequest

    def __init__(self, keeping: ResponseKeeping) -> None:
        self._keeping = keeping

    async def translate(self, body: ResponsesRequest, ignored: Ignored, caller: HttpCaller) -> tuple[ChatRequest, Any]:
        before = await self._keeping.before(body, caller.trace.admission.tenant)
        asked = await _translated(partial(translate_response, before=before), body, ignored)
        return asked.chat.body, asked

    async def read(self, opened: Opened[ResponsesRequest]) -> Sequence[ClientRequest]:
        return [await parse_chat(opened.plain, opened.assets, opened.caller, opened.asked.chat.spelling)]

    def reply(self, opened: Opened[ResponsesRequest], begun: BegunAnswers) -> Reply:
        (valid,), ((_, answer),) = begun.valid, begun.pairs
        return ResponsesReply(
            opened.body,
            opened.asked.repeated,
            valid,
            answer,
            opened.assets,
            clock=begun.clock,
            receipt=begun.receipt,
            kept=self.kept(opened),
        )

    def kept(self, opened: Opened[ResponsesRequest]) -> KeptResponse | None:
        """How the response will be stored, if it will."""
        return self._keeping.kept(opened.body, opened.asked.before, opened.caller.trace.admission.tenant)


class Messages:
    body = MessagesRequest

    async def translate(self, body: MessagesRequest, ignored: Ignored, caller: HttpCaller) -> tuple[ChatRequest, Any]:
        asked = await _translated(translate_message, body, ignored)
        return asked.chat.body, asked

    async def read(self, opened: Opened[MessagesRequest]) -> Sequence[ClientRequest]:
        request = await self._parsed(opened)
        room = room_for(request, opened)
        fills = request.max_tokens is not None and request.max_tokens > room > 0
        return [replace(request, max_tokens=room) if fills else request]

    async def _parsed(self, opened: Opened[MessagesRequest]) -> ClientRequest:
        continued, plain = opened.asked.continued, opened.plain
        if opened.assets.reasoning is None and opened.asked.thinking_budget is not None:
            # Clients of this API name a budget to every model; one that does not reason keeps any.
            plain = msgspec.structs.replace(plain, thinking_token_budget=None)
        try:
            return await parse_chat(plain, opened.assets, opened.caller, opened.asked.chat.spelling)
        except InvalidRequest as error:
            if error.field != CONTINUED or continued is None:
                raise
            what = (
                "the model's chat template cannot leave it open for the answer to continue; end with a user's message"
            )
            raise InvalidRequest(continued, f"{continued}: {what}") from None

    def reply(self, opened: Opened[MessagesRequest], begun: BegunAnswers) -> Reply:
        ((request, answer),) = begun.pairs
        return MessagesReply(
            answer,
            request_id=request.request_id,
            stream=bool(opened.body.stream),
            model=opened.body.model or opened.assets.name,
            shows_thinking=opened.asked.shows_thinking,
            fills_context=request.max_tokens is None or request.max_tokens != opened.plain.max_tokens,
            receipt=begun.receipt,
        )


class Ollama(Generic[OllamaBody]):
    """One of the two endpoints of Ollama's API that generate. `chat`: answers hold messages, not texts."""

    def __init__(
        self, body: type[OllamaBody], translate: Callable[[Any, Ignored], tuple[Any, Any]], *, chat: bool
    ) -> None:
        self.body, self._translate, self._chat = body, translate, chat

    async def translate(self, body: OllamaBody, ignored: Ignored, caller: HttpCaller) -> tuple[Any, Any]:
        translated: tuple[Any, Any] = await _translated(self._translate, body, ignored)
        return translated

    async def read(self, opened: Opened[OllamaBody]) -> Sequence[ClientRequest]:
        return await ollama_requests(opened)

    def reply(self, opened: Opened[OllamaBody], begun: BegunAnswers) -> Reply:
        return self._reply(opened, begun.pairs[0][1], begun.clock)

    def loaded(self, opened: Opened[OllamaBody], clock: Clock) -> Reply:
        """The reply to a request that asks nothing but that the model is loaded."""
        return self._reply(opened, None, clock)

    def _reply(self, opened: Opened[OllamaBody], answer: Answer | None, clock: Clock) -> Reply:
        return OllamaReply(
            answer,
            request_id=opened.caller.request_id,
            stream=bool(opened.plain.stream),
            model=opened.body.model or opened.assets.name,
            chat=self._chat,
            shows_thinking=opened.asked.shows_thinking,
            clock=clock,
        )


OLLAMA_CHAT = Ollama(OllamaChatRequest, translate_chat, chat=True)
OLLAMA_GENERATE = Ollama(OllamaGenerateRequest, translate_generate, chat=False)


async def ollama_requests(opened: Opened[Any]) -> Sequence[ClientRequest]:
    """An answer without a limit, or with one beyond the context, may take what the context leaves."""
    asked: AskedOllama = opened.asked
    plain = opened.plain
    if isinstance(plain, ChatRequest) and asked.text is not None and opened.assets.template is None:
        plain = as_completion(plain, asked.text)
    if isinstance(plain, CompletionRequest):
        (request,) = await parse_completion(plain, opened.assets, opened.caller)
        request = replace(request, field_names={**request.field_names, **NAMES})
    else:
        request = await parse_chat(plain, opened.assets, opened.caller, asked.spelling)
    room = room_for(request, opened)
    open_end = request.max_tokens is None or request.max_tokens > room
    return [replace(request, max_tokens=room) if open_end and room > 0 else request]


class MessagesCount:
    """A prompt whose tokens are counted, and not answered."""

    body = MessagesCountRequest

    async def translate(
        self, body: MessagesCountRequest, ignored: Ignored, caller: HttpCaller
    ) -> tuple[ChatRequest, Any]:
        asked = await _translated(translate_count, body, ignored)
        return asked.chat.body, asked


def room_for(request: ClientRequest, opened: Opened[Any]) -> int:
    """Tokens that context and the largest pool leave for the answer."""
    limits = (opened.assets.context_tokens, opened.facts.context_tokens, opened.facts.largest_pool_tokens)
    return min(limit for limit in limits if limit) - len(request.prompt)


async def _translated(translate: Callable[[Any, Ignored], Any], body: msgspec.Struct, ignored: Ignored) -> Any:
    values = [getattr(body, name) for name in body.__struct_fields__]
    return await when_idle(partial(translate, body, ignored), values)
