"""Parsed OpenAI request bodies as `ClientRequest`: prompts become token ids, options keep their meaning.

Step 1 of a request's life over HTTP, between gateway/openai/body.py and gateway/validation.py."""

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.lengths import validate_length
from gateway.observability.record import RequestRecord, unrecorded
from gateway.openai.types import ChatRequest, CommonRequest, CompletionRequest
from gateway.text.assets import Assets
from gateway.text.prompt import ChatPrompt, encode_chat, encode_text
from gateway.text.tools import ChatFields
from gateway.validation import ClientRequest
from mesh.errors import InvalidRequest

CHAT_FIELDS = ChatFields(
    messages="messages",
    tools="tools",
    template_arguments="chat_template_kwargs",
    function=".function",
    arguments="arguments",
    parameters="parameters",
)


@dataclass(frozen=True, slots=True)
class HttpCaller:
    """The parts of a request that are not in its body."""

    request_id: str
    trace: RequestRecord = field(default_factory=unrecorded, compare=False)
    headers: list[tuple[bytes, bytes]] = field(default_factory=list, compare=False)  # that the answer gets besides


async def parse_chat(body: ChatRequest, assets: Assets, caller: HttpCaller) -> ClientRequest:
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("top_logprobs", "top_logprobs needs logprobs = true")
    arguments = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        arguments.setdefault("reasoning_effort", body.reasoning_effort)
    chat = ChatPrompt(
        messages=body.messages or (),
        tools=body.tools or (),
        tool_choice=body.tool_choice,
        template_arguments=arguments,
        add_generation_prompt=body.add_generation_prompt is not False,
    )
    ids, tools = await encode_chat(assets, chat, CHAT_FIELDS)
    names = {"prompt": "messages"}
    max_tokens = body.max_tokens
    if body.max_completion_tokens is not None:
        max_tokens, names["max_tokens"] = body.max_completion_tokens, "max_completion_tokens"
    request = _client_request(
        body,
        caller,
        prompt=ids,
        max_tokens=max_tokens,
        top_logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        names=names,
    )
    return replace(request, tools=tools, one_call=body.parallel_tool_calls is False)


async def parse_completion(body: CompletionRequest, assets: Assets, caller: HttpCaller) -> list[ClientRequest]:
    """One request for each prompt."""
    if body.logprobs is not None and body.echo:
        raise InvalidRequest("echo", "echo with logprobs is not supported: logprobs of prompts are not computed")
    requests = []
    for prompt in _prompts(body.prompt, assets.context_tokens):
        is_text = isinstance(prompt, str)
        ids = await encode_text(assets, prompt, field="prompt", special=True) if is_text else tuple(prompt)
        await asyncio.sleep(0)  # others have their turn between prompts
        validate_length("prompt", len(ids), assets.context_tokens)  # before the next prompt is tokenized
        requests.append(
            _client_request(
                body,
                caller,
                prompt=ids,
                max_tokens=body.max_tokens,
                top_logprobs=body.logprobs,
                names={"top_logprobs": "logprobs"},
            )
        )
    return requests


def _prompts(prompt: str | list[str | int | list[int]] | None, context: int) -> list[Any]:
    """Every prompt as text or as token ids."""
    if prompt is None:
        raise InvalidRequest("prompt", "prompt is missing: text, a list of texts, token ids, or a list of those")
    if isinstance(prompt, str):
        return [prompt]
    kinds = {type(entry) for entry in prompt}
    if len(kinds) != 1:
        raise InvalidRequest(
            "prompt", "prompt must be a list of texts, of token ids, or of lists of token ids; not empty, not mixed"
        )
    if kinds == {int}:
        validate_length("prompt", len(prompt), context)
        return [prompt]
    return list(prompt)


def _client_request(
    body: CommonRequest,
    caller: HttpCaller,
    *,
    prompt: tuple[int, ...],
    max_tokens: int | None,
    top_logprobs: int | None,
    names: dict[str, str],
) -> ClientRequest:
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options", "stream_options needs stream = true")
    if body.stream_options is not None and body.stream_options.continuous_usage_stats:
        name = "stream_options.continuous_usage_stats"
        raise InvalidRequest(name, f"{name} is not supported: leave it out")
    return ClientRequest(
        request_id=caller.request_id,
        prompt=prompt,
        model=body.model,
        n=body.n,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        seed=body.seed,
        max_tokens=max_tokens,
        min_tokens=body.min_tokens,
        stop=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        include_stop=bool(body.include_stop_str_in_output),
        skip_special=body.skip_special_tokens is not False,
        top_logprobs=top_logprobs,
        allow_class_change=bool(body.allow_class_change),
        salt=body.cache_salt or "",
        priority=body.priority or 0,
        trace=caller.trace,
        field_names={"salt": "cache_salt", **names},
    )
