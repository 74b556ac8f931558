"""OpenAI requests as `ClientRequest`: prompts become token ids, options keep their meaning, one prompt at a time.

Text of any length is tokenized off the event loop once it is long enough to be felt there."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gateway.assets import Assets
from gateway.openai_types import ChatRequest, Common, CompletionRequest, Json
from gateway.tools import check_answered, declared, names_of, said_calls
from gateway.validation import ClientRequest, check_length
from mesh.errors import ContextTooLong, InvalidRequest

LONG_CHARACTERS = 16_384  # some milliseconds of tokenizing
LONG_TALK = 64  # messages; some milliseconds of a template
PROMPTS = 256
ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class Caller:
    """What a request has besides its body."""

    request_id: str
    traceparent: str = ""


async def encode(assets: Assets, field: str, text: str, *, special: bool) -> tuple[int, ...]:
    """`field`: where the text came from. A text that fits into no context is refused unseen: tokenizing takes a hundred
    times its memory."""
    if len(text) > assets.tokens.most_characters(assets.context_tokens):
        raise ContextTooLong(
            field,
            f"{field} has {len(text)} characters; the model's context of {assets.context_tokens} tokens cannot hold "
            f"so many; shorten {field}",
        )
    if len(text) < LONG_CHARACTERS:
        return assets.tokens.encode(text, special=special)
    return await asyncio.to_thread(assets.tokens.encode, text, special=special)


async def ask_completion(body: CompletionRequest, assets: Assets, caller: Caller) -> list[ClientRequest]:
    """One for each prompt."""
    if body.logprobs is not None and body.echo:
        raise InvalidRequest("echo", "echo with logprobs is not supported: logprobs of prompts are not computed")
    asked = []
    for prompt in _prompts(body.prompt, assets.context_tokens):
        ids = await encode(assets, "prompt", prompt, special=True) if isinstance(prompt, str) else tuple(prompt)
        check_length("prompt", len(ids), assets.context_tokens)  # before the next one is looked at
        asked.append(_asked(body, ids, "prompt", body.max_tokens, body.logprobs, {"top_logprobs": "logprobs"}, caller))
    return asked


async def ask_chat(body: ChatRequest, assets: Assets, caller: Caller) -> ClientRequest:
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("top_logprobs", "top_logprobs needs logprobs = true")
    arguments = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        arguments.setdefault("reasoning_effort", body.reasoning_effort)
    tools = declared(body.tools, body.tool_choice)
    ids = await chat_ids(assets, body.messages, body.add_generation_prompt is not False, arguments, tools)
    max_tokens, names = body.max_tokens, {}
    if body.max_completion_tokens is not None:
        max_tokens, names = body.max_completion_tokens, {"max_tokens": "max_completion_tokens"}
    top = (body.top_logprobs or 0) if body.logprobs else None
    asked = _asked(body, ids, "messages", max_tokens, top, names, caller)
    return replace(asked, tools=names_of(tools), one_call=body.parallel_tool_calls is False)


async def chat_ids(
    assets: Assets,
    messages: Sequence[Json] | None,
    add_generation_prompt: bool,
    arguments: Json,
    tools: Sequence[Json] = (),
) -> tuple[int, ...]:
    if assets.template is None:
        raise InvalidRequest("messages", f"model {assets.name!r} has no chat template; send a prompt instead")
    if not messages:
        raise InvalidRequest("messages", "messages needs at least one message")
    if len(messages) > assets.context_tokens:  # each is a token at least
        check_length("messages", len(messages), assets.context_tokens)
    if reserved := {"messages", "add_generation_prompt", "tools", "documents"} & set(arguments):
        name = min(reserved)
        raise InvalidRequest("chat_template_kwargs", f"chat_template_kwargs must not set {name}")
    checked = [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]
    check_answered(checked)
    if assets.why_no_tools is not None and (tools or any(message.get("tool_calls") for message in checked)):
        name = "tools" if tools else "messages"
        raise InvalidRequest(name, f"model {assets.name!r} cannot be given tools: {assets.why_no_tools}")
    if tools:
        arguments = arguments | {"tools": list(tools)}
    render = partial(assets.template.render, checked, add_generation_prompt=add_generation_prompt, arguments=arguments)
    text = render() if len(checked) <= LONG_TALK else await asyncio.to_thread(render)
    return await encode(assets, "messages", text, special=False)


def _message(message: Json, where: str) -> Json:
    """What templates expect: a role, and content as one text."""
    if message.get("role") not in ROLES:
        raise InvalidRequest(f"{where}.role", f"{where}.role must be one of {', '.join(ROLES)}")
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(_part(part, f"{where}.content[{index}]") for index, part in enumerate(content))
    if content is None and (message["role"] != "assistant" or not message.get("tool_calls")):
        raise InvalidRequest(f"{where}.content", f"{where}.content is missing")
    if content is not None and not isinstance(content, str):
        raise InvalidRequest(f"{where}.content", f"{where}.content must be text or a list of text parts")
    checked = message | {"content": content}
    return said_calls(checked, where) if checked.get("tool_calls") else checked


def _part(part: Any, where: str) -> str:
    if not isinstance(part, dict) or part.get("type") not in ("text", "input_text"):
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        raise InvalidRequest(f"{where}.type", f"{where}.type is {kind!r}; only text is supported")
    if not isinstance(part.get("text"), str):
        raise InvalidRequest(f"{where}.text", f"{where}.text must be text")
    return str(part["text"])


def _prompts(prompt: str | list[str | int | list[int]] | None, context: int) -> list[str | list[int]]:
    if prompt is None:
        raise InvalidRequest("prompt", "prompt is missing: text, a list of texts, token ids, or a list of those")
    if isinstance(prompt, str):
        return [prompt]
    if prompt and isinstance(prompt[0], int):
        check_length("prompt", len(prompt), context)
    elif len(prompt) > PROMPTS:
        raise InvalidRequest("prompt", f"prompt has {len(prompt)} entries, at most {PROMPTS}")
    ids = [item for item in prompt if isinstance(item, int)]
    texts = [item for item in prompt if isinstance(item, str)]
    lists = [item for item in prompt if isinstance(item, list)]
    if not prompt or len(prompt) not in (len(ids), len(texts), len(lists)):
        raise InvalidRequest(
            "prompt", "prompt must be a list of texts, of token ids, or of lists of token ids; not empty"
        )
    if ids:
        return [ids]
    return [*texts, *lists]


def _asked(
    body: Common,
    ids: tuple[int, ...],
    prompt_field: str,
    max_tokens: int | None,
    top_logprobs: int | None,
    names: dict[str, str],
    caller: Caller,
) -> ClientRequest:
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options", "stream_options needs stream = true")
    if body.stream_options is not None and body.stream_options.continuous_usage_stats:
        raise InvalidRequest("stream_options.continuous_usage_stats", "continuous_usage_stats is not supported")
    return ClientRequest(
        request_id=caller.request_id,
        prompt=ids,
        prompt_field=prompt_field,
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
        traceparent=caller.traceparent,
        names={"salt": "cache_salt", **names},
    )
