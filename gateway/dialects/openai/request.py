"""Parsed OpenAI request bodies as `ClientRequest`: prompts become token ids, options keep their meaning.

Step 1 of a request's life over HTTP, between gateway/dialects/openai/body.py and gateway/validation/validate.py."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from gateway.dialects.openai.beams import beams_of
from gateway.dialects.openai.prompts import prompts_of, with_suffix
from gateway.dialects.openai.types import ChatRequest, CommonRequest, CompletionRequest, EmbeddingRequest
from gateway.prompts.assets import Assets
from gateway.prompts.lengths import MAX_LISTED, validate_length
from gateway.prompts.prompt import ChatPrompt, encode_chat
from gateway.prompts.truncation import Truncation, cut_chat, encode_cut, truncation_of
from gateway.receipts.draft import spelled_class
from gateway.structured.calls import call_form
from gateway.structured.forms import Form, parse_response_format, parse_structured_outputs
from gateway.text.formats import HERMES
from gateway.text.tools import ChatFields
from gateway.tracing.record import RequestRecord, unrecorded
from gateway.validation.adjustments import AdjustmentFields, find_adjustments
from gateway.validation.client_request import ClientRequest
from gateway.validation.fields import Fields
from gateway.validation.listed import listed_count
from gateway.validation.ranges import MAX_TOP_LOGPROBS
from mesh.errors import InvalidRequest
from mesh.messages.jobs import Adjustments

_SPELLED = {"salt": "cache_salt", "affinity": "session_id", "logprob_ids": "logprob_token_ids"}
CHAT_FIELDS = ChatFields(
    messages="messages",
    tools="tools",
    template_arguments="chat_template_kwargs",
    function=".function",
    arguments="arguments",
    parameters="parameters",
)


@dataclass(frozen=True, slots=True)
class Spelling:
    """How one API over HTTP spells the fields of a chat that errors name."""

    chat: ChatFields = CHAT_FIELDS
    names: Mapping[str, str] = field(default_factory=dict)  # fields of ClientRequest, where they differ
    form: str = "response_format"
    flat: bool = False  # the name and schema of the form stand beside its type


CHAT_COMPLETIONS = Spelling()


@dataclass(frozen=True, slots=True)
class HttpCaller:
    """The parts of a request that are not in its body."""

    request_id: str
    trace: RequestRecord = field(default_factory=unrecorded, compare=False)
    headers: list[tuple[bytes, bytes]] = field(default_factory=list, compare=False)  # that the answer gets besides
    most_logprobs: int = MAX_TOP_LOGPROBS  # the setting max_logprobs
    context_tokens: int = 0  # smaller context of the model and its attached workers; 0: not known
    deadline: float | None = None  # when the client stops waiting, by the event loop's clock; None: it does not say

    @property
    def seconds_left(self) -> float | None:
        """Until the client stops waiting; it may be negative."""
        return None if self.deadline is None else self.deadline - asyncio.get_running_loop().time()


def chat_prompt(body: ChatRequest) -> ChatPrompt:
    return ChatPrompt(
        messages=body.messages or (),
        tools=body.tools or (),
        tool_choice=body.tool_choice,
        template_arguments=body.chat_template_kwargs,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=bool(body.continue_final_message),
        documents=body.documents,
        template=body.chat_template,
        reasoning_effort=body.reasoning_effort,
        parallel_calls=body.parallel_tool_calls is not False,
        special=bool(body.add_special_tokens),
    )


async def parse_chat(
    body: ChatRequest, assets: Assets, caller: HttpCaller, spelling: Spelling = CHAT_COMPLETIONS
) -> ClientRequest:
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("top_logprobs", "top_logprobs needs logprobs = true")
    context = caller.context_tokens or assets.context_tokens
    cut, fields = cut_of(body, context, answer_of(body)), spelling.chat
    ids, reading = cut_chat(assets, cut, *await encode_chat(assets, chat_prompt(body), fields))
    request = _client_request(
        body,
        caller,
        prompt=ids,
        vocabulary=assets.vocabulary,
        top_logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        adjustments=await _adjustments(body, assets, spelling.names),
        names={"prompt": fields.messages, **spelling.names},
    )
    _check_listed([request], "prompt_logprobs")
    answer, offered = await _form(body, assets, spelling), reading.use
    calls = partial(
        call_form,
        body.tools or (),
        offered,
        assets.tokenizer.added,
        reading.tools or HERMES,
        answer=answer,
        reasoning=assets.reasoning,
        parameters=f"{fields.function}.{fields.parameters}",
    )
    form = await assets.grammars.built(calls) if body.tools else answer
    return replace(
        request,
        reading=replace(reading, growing=bool(body.stream)),
        grammar=await assets.grammars.compiled(form),
        free_form=form is not None and form.free,
        field_names={**request.field_names, **({"grammar": form.field} if form else {})},
    )


async def _form(body: CommonRequest, assets: Assets, spelling: Spelling = CHAT_COMPLETIONS) -> Form | None:
    """The form that the answer must have."""
    added, wanted = assets.tokenizer.added, (body.response_format, body.structured_outputs)
    if wanted[0] is not None and wanted[0].get("type") != "text" and wanted[1] is not None:
        what = f"structured_outputs cannot be combined with {spelling.form}: send one"
        raise InvalidRequest("structured_outputs", what)
    if wanted[1] is not None:
        parse = partial(parse_structured_outputs, wanted[1], added, reasoning=assets.reasoning)
        return await assets.grammars.built(parse)
    if wanted[0] is not None:
        own = partial(parse_response_format, wanted[0], added, spelling.form, flat=spelling.flat)
        return await assets.grammars.built(partial(own, reasoning=assets.reasoning))
    return None


async def parse_completion(body: CompletionRequest, assets: Assets, caller: HttpCaller) -> list[ClientRequest]:
    """One request for each prompt."""
    adjustments, form = await _adjustments(body, assets, {}), await _form(body, assets)
    grammar = await assets.grammars.compiled(form)
    requests = list[ClientRequest]()
    cut = cut_of(body, caller.context_tokens or assets.context_tokens, answer_of(body))
    special = body.add_special_tokens is not False
    answer = body.max_tokens != 0
    for prompt in prompts_of(body.prompt, None if cut else assets.context_tokens + (not answer)):
        if body.suffix:
            ids = await with_suffix(body, prompt, assets)
        elif isinstance(prompt, str):
            ids = await encode_cut(assets, prompt, cut, field="prompt", special=special)
        else:
            ids = tuple(prompt) if cut is None else cut.cut(tuple(prompt))
        await asyncio.sleep(0)  # others have their turn between prompts
        validate_length("prompt", len(ids), assets.context_tokens, answer=answer)  # before the next one is tokenized
        request = _client_request(
            body,
            caller,
            prompt=ids,
            vocabulary=assets.vocabulary,
            top_logprobs=body.logprobs,
            adjustments=adjustments,
            names={"top_logprobs": "logprobs"} | ({"grammar": form.field} if form else {}),
            grammar=grammar,
            free_form=form is not None and form.free,
        )
        if body.echo and request.top_logprobs is not None:  # both lists are made of one computation
            request = replace(request, prompt_logprobs=max(request.top_logprobs, request.prompt_logprobs or 0))
        requests.append(request)
        _check_listed(requests, "echo" if body.echo and body.logprobs is not None else "prompt_logprobs")
    together, count = sum(len(prompt) for prompt in {each.prompt for each in requests}), len(requests)
    return [replace(each, beside_tokens=together - len(each.prompt), prompts=count) for each in requests]


def _check_listed(requests: list[ClientRequest], field: str) -> None:
    """The lists of prompt logprobs stay in memory until the answer is sent."""
    listed = sum(len(each.prompt) * (1 + each.prompt_logprobs) for each in requests if each.prompt_logprobs is not None)
    if listed > MAX_LISTED:
        what = f"{field} would list more than {MAX_LISTED} logprobs: send fewer or shorter prompts, or ask for fewer"
        raise InvalidRequest(field, f"{what} likeliest tokens at each position")


def _client_request(
    body: CommonRequest,
    caller: HttpCaller,
    *,
    prompt: tuple[int, ...],
    vocabulary: int,
    top_logprobs: int | None,
    adjustments: Adjustments | None,
    names: dict[str, str],
    grammar: str = "",
    free_form: bool = False,
) -> ClientRequest:
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options", "stream_options needs stream = true")
    if body.prompt_logprobs is not None and body.stream:
        raise InvalidRequest("prompt_logprobs", "prompt_logprobs are not available when stream=true")
    if body.stream and body.best_of not in (None, body.n or 1):
        raise InvalidRequest("best_of", "best_of above n cannot be streamed: which choices are best is known last")
    names, max_tokens = {**_SPELLED, **names}, body.max_tokens
    most, field = caller.most_logprobs, names.get("top_logprobs", "top_logprobs")
    top_logprobs = listed_count(top_logprobs, field, most, vocabulary)
    if body.max_completion_tokens is not None:
        names["max_tokens"], max_tokens = "max_completion_tokens", body.max_completion_tokens
    if body.prompt_cache_key is not None:
        names["affinity"] = "prompt_cache_key"
    return ClientRequest(
        request_id=caller.request_id,
        prompt=prompt,
        prompt_logprobs=listed_count(body.prompt_logprobs, "prompt_logprobs", most, vocabulary),
        model=body.model,
        n=body.n,
        best_of=None if body.use_beam_search else body.best_of,
        beams=beams_of(body, top_logprobs),
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        seed=body.seed,
        max_tokens=max_tokens,
        min_tokens=body.min_tokens,
        stop=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        adjustments=adjustments,
        thinking_token_budget=body.thinking_token_budget,
        ignore_eos=bool(body.ignore_eos),
        include_stop=bool(body.include_stop_str_in_output),
        skip_special=body.skip_special_tokens is not False,
        top_logprobs=top_logprobs,
        logprob_ids=tuple(body.logprob_token_ids or ()),
        allow_class_change=bool(body.allow_class_change),
        numerics=_numerics(body),
        salt=body.cache_salt or "",
        affinity=(body.session_id if body.prompt_cache_key is None else body.prompt_cache_key) or "",
        priority=body.priority or 0,
        deadline_seconds=caller.seconds_left,
        trace=caller.trace,
        grammar=grammar,
        free_form=free_form,
        field_names=names,
    )


def _numerics(body: CommonRequest) -> str:
    """The only numerics class whose workers may answer; empty: any."""
    wanted = body.numerics_class
    return "" if wanted is None else spelled_class(wanted.name, wanted.fingerprint)


async def _adjustments(body: CommonRequest, assets: Assets, names: Mapping[str, str]) -> Adjustments | None:
    wanted = AdjustmentFields(
        frequency_penalty=body.frequency_penalty,
        presence_penalty=body.presence_penalty,
        repetition_penalty=body.repetition_penalty,
        logit_bias=body.logit_bias,
        bad_words=body.bad_words or (),
        allowed_token_ids=body.allowed_token_ids,
    )
    return await find_adjustments(wanted, Fields(names), assets)


def answer_of(body: CommonRequest) -> int:
    """Tokens that a cut prompt leaves for the answer."""
    return body.max_completion_tokens or body.max_tokens or 1


def cut_of(body: CommonRequest | EmbeddingRequest, context: int, answer: int) -> Truncation | None:
    side = body.truncation_side
    if side not in (None, "left", "right"):
        raise InvalidRequest("truncation_side", "truncation_side must be left or right: the side that is cut")
    return truncation_of(
        body.truncate_prompt_tokens,
        keep_end=side != "right",
        context=context,
        answer=answer,
        field="truncate_prompt_tokens",
    )
