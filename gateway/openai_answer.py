"""Tokens and ends in the OpenAI API's words: logprobs, finish reasons, usage, whole answers.

Frames of streams are in gateway/sse.py."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.answer import TIMED, Answer, Delta, Finished
from gateway.calls import Call
from gateway.tokenizer import ModelTokenizer
from mesh.messages import End, Token

Json = dict[str, Any]


def chat_logprobs(tokens: ModelTokenizer, items: Sequence[Token]) -> Json:
    def entry(token: int, logprob: float) -> Json:
        return {"token": tokens.token_text(token), "logprob": logprob, "bytes": list(tokens.token_bytes(token))}

    content = [
        entry(item.token, item.logprob)
        | {"top_logprobs": [entry(*top) for top in zip(item.top_ids, item.top_logprobs, strict=True)]}
        for item in items
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(tokens: ModelTokenizer, items: Sequence[Token], offset: int) -> Json:
    """`offset`: characters of this choice's text before the first of these tokens."""
    texts = [tokens.token_text(item.token) for item in items]
    offsets = [offset + sum(map(len, texts[:index])) for index in range(len(texts))]
    tops: list[dict[str, float] | None] = []
    for item, text in zip(items, texts, strict=True):
        top = {tokens.token_text(t): p for t, p in zip(item.top_ids, item.top_logprobs, strict=True)}
        tops.append(({text: item.logprob} | top) if top else None)
    return {
        "text_offset": offsets,
        "token_logprobs": [item.logprob for item in items],
        "tokens": texts,
        "top_logprobs": tops,
    }


def end_of(finished: Finished) -> Json:
    reason = "length" if finished.reason is End.LENGTH else "tool_calls" if finished.called else "stop"
    stop: int | str | None = finished.stop_id if finished.stop_string is None else finished.stop_string
    return {"finish_reason": reason, "stop_reason": stop}


def tool_call(call: Call) -> Json:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def usage_of(prompt_tokens: int, answers: Sequence[Answer]) -> Json:
    completion_tokens = sum(answer.completion_tokens for answer in answers)
    drafted, accepted = (
        sum(answer.drafted_tokens for answer in answers),
        sum(answer.accepted_tokens for answer in answers),
    )
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(answer.cached_tokens for answer in answers)},
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
        },
    }


def timings_of(answers: Sequence[Answer]) -> Json:
    """In seconds, of the slowest choice; what was not measured is left out. Ours, beside what OpenAI's API has."""
    every = [handle.timings for answer in answers for handle in answer.handles]
    timings: Json = {}
    for name in TIMED:
        known = [value for each in every if (value := getattr(each, name)) is not None]
        timings |= {name: max(known)} if known else {}
    steps, accepted = sum(each.decode_steps for each in every), sum(each.accepted_tokens for each in every)
    if steps:
        timings |= {"decode_steps": max(each.decode_steps for each in every)}
        timings |= {"tokens_per_step": (steps + accepted) / steps}
    return timings


def fingerprint_of(numerics: str) -> str:
    """Equal where bits are equal; the class's own fingerprint is its last word."""
    return numerics.rpartition(" ")[2]


@dataclass(slots=True)
class Whole:
    """One choice of an answer that is not streamed, while it grows."""

    index: int
    texts: list[str] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    finished: Finished | None = None

    def take(self, event: Delta | Finished) -> None:
        if isinstance(event, Finished):
            self.finished = event
        else:
            self.texts.append(event.text)
            self.tokens.extend(event.tokens)
            self.calls.extend(event.calls)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def end(self) -> Json:
        assert self.finished is not None, "an answer without an error finishes every choice"
        return end_of(self.finished)


def chat_choice(whole: Whole, tokens: ModelTokenizer, with_logprobs: bool) -> Json:
    message: Json = {"role": "assistant", "content": whole.text, "refusal": None}
    if whole.calls:
        message |= {"content": whole.text or None, "tool_calls": [tool_call(call) for call in whole.calls]}
    logprobs = chat_logprobs(tokens, whole.tokens) if with_logprobs else None
    return {"index": whole.index, "message": message, "logprobs": logprobs} | whole.end()


def completion_choice(whole: Whole, tokens: ModelTokenizer, with_logprobs: bool, echo: str, index: int) -> Json:
    logprobs = completion_logprobs(tokens, whole.tokens, 0) if with_logprobs else None
    return {"index": index, "text": echo + whole.text, "logprobs": logprobs} | whole.end()
