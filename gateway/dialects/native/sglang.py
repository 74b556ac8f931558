"""`POST /generate`, SGLang's own dialect: one text or list of ids, or a batch of them; whole or streamed.

Each event of a stream holds the whole answer so far, as SGLang's do. So that a long answer does not cost the square of
its length, its events come less often the longer it is (gateway/dialects/native/growing.py). Steps 1 and 8 of a
request's life over HTTP."""

from collections.abc import AsyncGenerator, Iterator
from functools import partial
from typing import Any

from gateway.answers.answer import Answer
from gateway.answers.events import Delta, Finished, merge
from gateway.core.interface import PromptScores
from gateway.dialects.common.pieces import JsonPieces, encode_pieces, in_thread
from gateway.dialects.described.native import SglangEnd, SglangMeta
from gateway.dialects.native.dialect import CompletionDialect
from gateway.dialects.native.growing import GrowingChoice, Triples
from gateway.dialects.native.types import SglangBody, SglangSampling, check_off, idle_fields
from gateway.dialects.openai.reply import BaseReply, Pairs, likeliest, made, numbered
from gateway.dialects.openai.signed import put_in
from gateway.dialects.openai.types import CompletionRequest
from gateway.prompts.assets import Assets
from gateway.receipts.answers.fields import SentAnswer
from gateway.receipts.answers.growing import grown, shape
from gateway.receipts.answers.reading import loads_slowly
from gateway.receipts.receipts import OpenReceipt
from gateway.validation.client_request import is_request_id
from mesh.errors import InvalidRequest
from mesh.messages.jobs import End

DEFAULT_TOKENS = 128  # SGLang's default
SLICE = 64  # tokens of a prompt whose logprobs are rendered at once
PATH = "sampling_params."
_SAME = (
    *("n", "temperature", "top_p", "top_k", "min_p", "stop", "stop_token_ids", "ignore_eos", "skip_special_tokens"),
    *("frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias"),
)
_NAMES = {
    **{name: PATH + name for name in _SAME},
    "max_tokens": f"{PATH}max_new_tokens",
    "min_tokens": f"{PATH}min_new_tokens",
    "seed": f"{PATH}sampling_seed",
    "structured_outputs": PATH.removesuffix("."),
    "structured_outputs.json": f"{PATH}json_schema",
    "logprobs": "top_logprobs_num",
    "top_logprobs": "top_logprobs_num",
    "prompt_logprobs": "logprob_start_len",
    "thinking_token_budget": "max_thinking_tokens",
    "request_id": "rid",
}


def _translate(body: SglangBody, ignored: list[str]) -> CompletionRequest:
    wanted = body.sampling_params or SglangSampling()
    check_off(body)
    ignored += [*idle_fields(body), *idle_fields(wanted, PATH)]
    if body.rid is not None and not is_request_id(body.rid):
        raise InvalidRequest("rid", "rid must be 1 to 128 printable ASCII characters without spaces, and not . or ..")
    if (body.text is None) == (body.input_ids is None):
        what = "is missing: send text or input_ids" if body.text is None else "and input_ids exclude each other"
        raise InvalidRequest("text", f"text {what}")
    forms = {"json": wanted.json_schema, "regex": wanted.regex, "structural_tag": wanted.structural_tag}
    given = {kind: value for kind, value in forms.items() if value is not None}
    top, start = _logprobs(body, ignored)
    prompt: Any = body.input_ids if body.text is None else body.text
    return CompletionRequest(
        prompt=prompt,
        model=body.lora_path or body.model,
        request_id=body.rid,
        session_id=body.session_id,
        priority=body.priority,
        cache_salt="/".join(filter(None, (body.cache_salt, body.extra_key))) or None,
        stream=body.stream,
        max_tokens=wanted.max_new_tokens,
        min_tokens=wanted.min_new_tokens,
        seed=wanted.sampling_seed,
        include_stop_str_in_output=wanted.no_stop_trim,
        structured_outputs=given or None,
        logprobs=top,
        prompt_logprobs=None if start is None else top,
        thinking_token_budget=body.max_thinking_tokens,
        numerics_class=body.numerics_class,
        receipt=body.receipt,
        **{name: getattr(wanted, name) for name in _SAME},
    )


def _logprobs(body: SglangBody, ignored: list[str]) -> tuple[int | None, int | None]:
    """How many likeliest tokens are listed, None without logprobs; and from where on in the prompt, None: nowhere."""
    top, start = body.top_logprobs_num or 0, body.logprob_start_len
    if not body.return_logprob:
        neutral: dict[str, Any] = {"top_logprobs_num": 0, "logprob_start_len": -1, "return_text_in_logprobs": False}
        ignored += [name for name, value in neutral.items() if getattr(body, name) not in (None, value)]
        return None, None
    if start is not None and start < -1:
        what = f"logprob_start_len must be a position of the prompt, or -1 for no position, not {start}"
        raise InvalidRequest("logprob_start_len", what)
    return top, None if start in (None, -1) else start


class SglangReply(BaseReply):
    prefix = "generate"

    def __init__(
        self,
        body: SglangBody,
        plain: CompletionRequest,
        pairs: Pairs,
        assets: Assets,
        created: int,
        receipt: OpenReceipt | None,
    ) -> None:
        super().__init__(plain, pairs, assets, created=created, receipt=receipt)
        ids = body.input_ids
        listed = isinstance(body.text, list) or (bool(ids) and isinstance(ids and ids[0], list))
        self._many = listed or self._choices > 1
        self._top = likeliest(plain.logprobs, assets)
        self._start = None if plain.prompt_logprobs is None else body.logprob_start_len
        self._texts = bool(body.return_text_in_logprobs)
        self._growing: dict[int, GrowingChoice] = {}
        self._open = len(self._answers) * self._choices  # choices that have not ended

    async def frames(self) -> AsyncGenerator[bytes, None]:
        shapes, last = list[list[Any]](), dict[int, bytes]()  # shapes of the events, and ended answers, for a receipt
        async for event in self._events():
            choice, index = self._growing[event.index], event.index
            if isinstance(event, Delta) and not choice.is_due():
                continue
            meta = self._meta(index, event if isinstance(event, Finished) else None)
            if self._receipt is not None:
                shapes.append(shape(index if self._many else None, choice.characters, choice.tokens))
                if isinstance(event, Finished):
                    last[index] = self._object(index, meta)
                    if not self._open:
                        put_in(meta, await self._receipt.of(partial(_grown, last, shapes)))
            yield b"data: " + self._object(index, meta) + b"\n\n"

    async def whole(self) -> object:
        metas: dict[int, SglangMeta] = {}  # in the order in which their choices end
        async for event in self._events():
            if isinstance(event, Finished):
                metas[event.index] = meta = self._meta(event.index, event)
                put_in(meta, await self._of_prompt(self._answers[event.index // self._choices]))
        if self._receipt is not None:
            signed = await self._receipt.of_whole(lambda: encode_pieces(self._answer_of(metas)))
            put_in(metas[[*metas][-1]], signed)
        return self._answer_of(metas)

    def _answer_of(self, metas: dict[int, SglangMeta]) -> object:
        answers = [JsonPieces([b"{", *self._growing[at].members(metas[at]), b"}"]) for at in sorted(metas)]
        return answers if self._many else answers[0]

    def _object(self, index: int, meta: SglangMeta) -> bytes:
        """An event's object: the whole answer so far."""
        number = b'"index":%d,' % index if self._many else b""
        return b"{" + number + b"".join(self._growing[index].members(meta)) + b"}"

    async def _events(self) -> AsyncGenerator[Delta | Finished, None]:
        """The events of all choices; what they bring is in `_growing` already."""
        triples = None if self._top is None else Triples(self._tokenizer, self._top, texts=self._texts)
        async for event in merge([numbered(self.events(i), i * self._choices) for i in range(len(self._answers))]):
            choice = self._growing.setdefault(event.index, GrowingChoice(triples))
            if isinstance(event, Delta):
                await made(partial(choice.add, event), event)
            yield event

    def _meta(self, index: int, finished: Finished | None) -> SglangMeta:
        answer, choice = self._answers[index // self._choices], self._growing[index]
        if choice.cached_tokens is None:
            choice.cached_tokens = answer.cached_tokens
        meta = SglangMeta(
            id=f"{self.request_id}_{index}" if self._many else self.request_id,
            finish_reason=None,
            prompt_tokens=answer.prompt_tokens,
            completion_tokens=choice.tokens,
            cached_tokens=choice.cached_tokens,
        )
        if finished is not None:
            self._open -= 1
            meta.finish_reason = _end(finished, choice)
            meta.e2e_latency = max((each.total_seconds for each in self._answers[0].timings), default=0.0)
        return meta

    async def _of_prompt(self, answer: Answer) -> dict[str, Any]:
        """Logprobs of the prompt from the wanted position on; the first one has none, as in SGLang."""
        if self._top is None:
            return {}
        if self._start is None or answer.scores is None:
            return {"input_token_logprobs": []} | ({"input_top_logprobs": []} if self._top else {})
        triples = Triples(self._tokenizer, self._top, texts=self._texts)
        slices = [each async for each in in_thread(_prompt_slices(answer.scores, self._start, triples))]
        found = {"input_token_logprobs": JsonPieces.of_items([tokens for tokens, _ in slices])}
        if self._top:
            found["input_top_logprobs"] = JsonPieces.of_items([tops for _, tops in slices])
        return found


def _end(finished: Finished, choice: GrowingChoice) -> SglangEnd:
    """Why the choice ended."""
    if finished.reason is End.LENGTH:
        return SglangEnd(type="length", length=choice.tokens)
    matched = finished.stop_string if finished.stop_id is None else finished.stop_id
    return SglangEnd(type="stop", matched=choice.last if matched is None else matched)


def _grown(last: dict[int, bytes], shapes: list[list[Any]]) -> SentAnswer:
    return grown([loads_slowly(last[index].decode()) for index in sorted(last)], shapes)


def _prompt_slices(scores: PromptScores, start: int, triples: Triples) -> Iterator[tuple[bytes, bytes]]:
    tokens, tops = list[bytes](), list[bytes]()
    if start < len(scores.prompt):
        tokens.append(triples.of(scores.prompt[start], None))
        tops.append(b"null")
    for position, entry in enumerate(scores.entries(), 1):
        if position > start:
            tokens.append(triples.of(entry.token, entry.logprob))
            tops.append(triples.listed(zip(entry.top_ids, entry.top_logprobs, strict=False)))
        if len(tokens) >= max(1, SLICE // (1 + triples.top // SLICE)):
            yield b",".join(tokens), b",".join(tops)
            tokens, tops = [], []
    if tokens:
        yield b",".join(tokens), b",".join(tops)


SGLANG = CompletionDialect(
    path="/generate",
    body=SglangBody,
    translate=_translate,
    names=lambda body: _NAMES | {"prompt": "input_ids" if body.text is None else "text"},
    reply=SglangReply,
    default_tokens=DEFAULT_TOKENS,
)
