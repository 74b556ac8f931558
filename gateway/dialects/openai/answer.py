"""Parts of an answer as objects of the OpenAI API: logprobs, finish reasons, tool calls, usage, whole choices.

gateway/dialects/common/sse.py has the frames of streamed answers."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Generic, Protocol, TypeVar

from gateway.answers.answer import Answer
from gateway.answers.events import Delta, Finished
from gateway.answers.usage import TokenUsage, timings_of
from gateway.dialects.common.pieces import GrowingList, JsonPieces
from gateway.dialects.common.sse import encode
from gateway.dialects.described.answers import (
    AnswerTimings,
    AnswerUsage,
    AssistantMessage,
    CachedTokens,
    CalledFunction,
    CalledTool,
    ChatAnswerChoice,
    ChatLogprobs,
    ChatToken,
    CompletionAnswerChoice,
    CompletionDetails,
    CompletionLogprobs,
    FunctionPiece,
    LikelyToken,
    ToolPiece,
)
from gateway.text.tool_calls import ToolCall
from mesh.messages.jobs import End, Token

Json = dict[str, Any]


class TokenNames(Protocol):
    """How logprobs name a token: by its text, or by its id."""

    def token_text(self, token: int) -> str: ...

    def token_bytes(self, token: int) -> bytes: ...

    def __hash__(self) -> int: ...


class NumberedTokens:
    """Names that are distinct for distinct tokens, unlike texts; clients ask for them by return_tokens_as_token_ids."""

    def token_text(self, token: int) -> str:
        return f"token_id:{token}"

    def token_bytes(self, token: int) -> bytes:
        return self.token_text(token).encode()


NUMBERED = NumberedTokens()


@lru_cache(maxsize=1 << 16)  # a model's likeliest tokens come again and again
def spelled(names: TokenNames, token: int) -> tuple[str, tuple[int, ...]]:
    """Text and bytes of one token."""
    return names.token_text(token), tuple(names.token_bytes(token))


def chat_logprobs(tokenizer: TokenNames, tokens: Sequence[Token]) -> ChatLogprobs:
    content = []
    for token in tokens:
        text, spelling = spelled(tokenizer, token.token)
        likely = []
        for top, logprob in zip(token.top_ids, token.top_logprobs, strict=True):
            name, its_spelling = spelled(tokenizer, top)
            likely.append(LikelyToken(name, logprob, its_spelling))
        content.append(ChatToken(text, token.logprob, spelling, likely))
    return ChatLogprobs(content)


def completion_logprobs(tokenizer: TokenNames, tokens: Sequence[Token], offsets: Sequence[int]) -> CompletionLogprobs:
    """`offsets`: where the text of each token begins in the text of its choice."""
    texts = [spelled(tokenizer, token.token)[0] for token in tokens]
    tops: list[dict[str, float] | None] = []
    for token, text in zip(tokens, texts, strict=True):
        top = {spelled(tokenizer, t)[0]: p for t, p in zip(token.top_ids, token.top_logprobs, strict=True)}
        tops.append(({text: token.logprob} | top) if top else None)
    return CompletionLogprobs(list(offsets), [token.logprob for token in tokens], texts, tops)


def finish_fields(finished: Finished) -> Json:
    reason = "length" if finished.reason is End.LENGTH else "tool_calls" if finished.called else "stop"
    stop: int | str | None = finished.stop_id if finished.stop_string is None else finished.stop_string
    return {"finish_reason": reason, "stop_reason": stop}


def called_tool(call: ToolCall) -> CalledTool:
    return CalledTool(call.id, "function", CalledFunction(call.name, call.arguments))


def tool_pieces(calls: Sequence[ToolCall]) -> list[ToolPiece]:
    """Calls and pieces of calls as a frame has them: one entry for each call."""
    entries: dict[int, ToolPiece] = {}
    for call in calls:
        if call.index in entries:
            entries[call.index].function.arguments += call.arguments
            continue
        piece = entries[call.index] = ToolPiece(index=call.index, function=FunctionPiece(arguments=call.arguments))
        if not call.later:
            piece.id, piece.type, piece.function.name = call.id, "function", call.name
    return list(entries.values())


def answer_usage(usage: TokenUsage) -> AnswerUsage:
    return AnswerUsage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=CachedTokens(usage.cached_tokens),
        completion_tokens_details=CompletionDetails(
            reasoning_tokens=usage.reasoning_tokens,
            accepted_prediction_tokens=usage.accepted_tokens,
            rejected_prediction_tokens=usage.drafted_tokens - usage.accepted_tokens,
        ),
    )


def answer_timings(answers: Sequence[Answer]) -> AnswerTimings:
    timings: Json = timings_of(answers)
    return AnswerTimings(**timings)


def fingerprint_of(numerics: str) -> str:
    """The fingerprint in a numerics class: its last word. It is equal where bits are equal."""
    return numerics.rpartition(" ")[2]


class ChatScores:
    """The logprobs of a whole choice of a chat, as it grows."""

    def __init__(self, names: TokenNames) -> None:
        self._names, self._content = names, GrowingList()

    def add(self, event: Delta) -> None:
        self._content.add(encode(chat_logprobs(self._names, event.tokens).content)[1:-1])

    def whole(self) -> ChatLogprobs:
        return ChatLogprobs(self._content.pieces())


class CompletionScores:
    """The same for a completion."""

    def __init__(self, names: TokenNames) -> None:
        self._names, self._offsets = names, array("I")
        self._lists = {name: GrowingList() for name in ("token_logprobs", "tokens", "top_logprobs")}

    def add(self, event: Delta) -> None:
        self._offsets.extend(event.offsets)
        made = completion_logprobs(self._names, event.tokens, ())
        for name, growing in self._lists.items():
            growing.add(encode(getattr(made, name))[1:-1])

    def whole(self, before: int, echoed: Sequence[dict[str, bytes]]) -> CompletionLogprobs:
        """`before`: characters of the prompt that the choice repeats; `echoed`: its items of each list."""
        offsets = JsonPieces([encode([before + offset for offset in self._offsets])])
        lists = {"text_offset": offsets} | {name: growing.pieces() for name, growing in self._lists.items()}
        found: Json = {name: pieces.behind([items[name] for items in echoed]) for name, pieces in lists.items()}
        return CompletionLogprobs(**found)


Scores = TypeVar("Scores", ChatScores, CompletionScores)


@dataclass(slots=True)
class WholeChoice(Generic[Scores]):
    """One choice of an answer that is not streamed, collected event by event. Logprobs are encoded as they come: the
    likeliest tokens at each position of many choices are many megabytes."""

    index: int
    scores: Scores | None  # None: the client wants no logprobs
    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)  # pieces of the reasoning
    token_ids: list[int] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    finished: Finished | None = None

    def add(self, event: Delta | Finished) -> None:
        if isinstance(event, Finished):
            self.finished = event
        else:
            self.texts.append(event.text)
            self.token_ids.extend(token.token for token in event.tokens)
            if event.reasoning:
                self.thoughts.append(event.reasoning)
            if self.scores is not None:
                self.scores.add(event)
            self.calls.extend(event.calls)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def finish(self) -> Json:
        assert self.finished is not None, "an answer without an error finishes every choice"
        return finish_fields(self.finished)


def reasoning_fields(reasoning: str) -> Json:
    """Under the name of today and the one before it: clients read one or the other."""
    return {"reasoning": reasoning, "reasoning_content": reasoning}


def chat_choice(whole: WholeChoice[ChatScores], with_reasoning: bool = True) -> ChatAnswerChoice:
    message = AssistantMessage(content=whole.text)
    if whole.thoughts and with_reasoning:
        message.reasoning = message.reasoning_content = "".join(whole.thoughts)
    if whole.calls:
        message.content = whole.text or None
        message.tool_calls = [called_tool(call) for call in whole.calls]
    logprobs = None if whole.scores is None else whole.scores.whole()
    return ChatAnswerChoice(index=whole.index, message=message, logprobs=logprobs, **whole.finish())


def completion_choice(
    whole: WholeChoice[CompletionScores], echo: str, echoed: Sequence[dict[str, bytes]], index: int
) -> CompletionAnswerChoice:
    """`echoed`: encoded logprobs of the prompt `echo`, where the client wants them too."""
    logprobs = None if whole.scores is None else whole.scores.whole(len(echo), echoed)
    return CompletionAnswerChoice(index=index, text=echo + whole.text, logprobs=logprobs, **whole.finish())
