"""Parts of an answer as objects of the OpenAI API: logprobs, finish reasons, tool calls, usage, whole choices.

gateway/openai/sse.py has the frames of streamed answers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import Any

from gateway.answer import Delta, Finished
from gateway.text.tokenizer import ModelTokenizer
from gateway.text.tool_calls import ToolCall
from gateway.usage import TokenUsage
from mesh.messages import End, Token

Json = dict[str, Any]


@lru_cache(maxsize=1 << 16)  # a model's likeliest tokens come again and again
def spelled(tokenizer: ModelTokenizer, token: int) -> tuple[str, tuple[int, ...]]:
    """Text and bytes of one token."""
    return tokenizer.token_text(token), tuple(tokenizer.token_bytes(token))


def chat_logprobs(tokenizer: ModelTokenizer, tokens: Sequence[Token]) -> Json:
    def entry(token: int, logprob: float) -> Json:
        text, spelling = spelled(tokenizer, token)
        return {"token": text, "logprob": logprob, "bytes": spelling}

    content = [
        entry(token.token, token.logprob)
        | {"top_logprobs": [entry(*top) for top in zip(token.top_ids, token.top_logprobs, strict=True)]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(tokenizer: ModelTokenizer, tokens: Sequence[Token], offset: int) -> Json:
    """`offset`: characters of this choice's text before the first of these tokens."""
    texts = [spelled(tokenizer, token.token)[0] for token in tokens]
    offsets = [*accumulate(map(len, texts), initial=offset)][:-1]
    tops: list[dict[str, float] | None] = []
    for token, text in zip(tokens, texts, strict=True):
        top = {spelled(tokenizer, t)[0]: p for t, p in zip(token.top_ids, token.top_logprobs, strict=True)}
        tops.append(({text: token.logprob} | top) if top else None)
    return {
        "text_offset": offsets,
        "token_logprobs": [token.logprob for token in tokens],
        "tokens": texts,
        "top_logprobs": tops,
    }


def finish_fields(finished: Finished) -> Json:
    reason = "length" if finished.reason is End.LENGTH else "tool_calls" if finished.called else "stop"
    stop: int | str | None = finished.stop_id if finished.stop_string is None else finished.stop_string
    return {"finish_reason": reason, "stop_reason": stop}


def tool_call(call: ToolCall) -> Json:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def usage_fields(usage: TokenUsage) -> Json:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {
            "accepted_prediction_tokens": usage.accepted_tokens,
            "rejected_prediction_tokens": usage.drafted_tokens - usage.accepted_tokens,
        },
    }


def fingerprint_of(numerics: str) -> str:
    """The fingerprint in a numerics class: its last word. It is equal where bits are equal."""
    return numerics.rpartition(" ")[2]


@dataclass(slots=True)
class WholeChoice:
    """One choice of an answer that is not streamed, collected event by event."""

    index: int
    texts: list[str] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    finished: Finished | None = None

    def add(self, event: Delta | Finished) -> None:
        if isinstance(event, Finished):
            self.finished = event
        else:
            self.texts.append(event.text)
            self.tokens.extend(event.tokens)
            self.calls.extend(event.calls)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def finish(self) -> Json:
        assert self.finished is not None, "an answer without an error finishes every choice"
        return finish_fields(self.finished)


def chat_choice(whole: WholeChoice, tokenizer: ModelTokenizer, with_logprobs: bool) -> Json:
    message: Json = {"role": "assistant", "content": whole.text, "refusal": None}
    if whole.calls:
        message |= {"content": whole.text or None, "tool_calls": [tool_call(call) for call in whole.calls]}
    logprobs = chat_logprobs(tokenizer, whole.tokens) if with_logprobs else None
    return {"index": whole.index, "message": message, "logprobs": logprobs} | whole.finish()


def completion_choice(
    whole: WholeChoice, tokenizer: ModelTokenizer, with_logprobs: bool, echo: str, index: int
) -> Json:
    logprobs = completion_logprobs(tokenizer, whole.tokens, 0) if with_logprobs else None
    return {"index": index, "text": echo + whole.text, "logprobs": logprobs} | whole.finish()
