"""The bodies of `/v1/messages` and `/v1/messages/count_tokens` as a chat completion.

Step 1 of a request's life over HTTP. What would need a service of Anthropic is refused by name: its own tools, images,
containers, MCP servers, edits of the context."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.dialects.anthropic.blocks import open_path, read_messages
from gateway.dialects.anthropic.types import MessagesCountRequest, MessagesRequest
from gateway.dialects.translation.chat import TranslatedChat, translated_chat
from gateway.dialects.translation.options import ChatOptions
from gateway.dialects.translation.reading import Ignored, ObjectReader, ignore
from gateway.prompts.prompt import SWITCHES
from gateway.validation.fields import Fields
from gateway.validation.ranges import RANGES
from gateway.validation.thinking import FIELD as BUDGET
from mesh.errors import InvalidRequest, brief

Json = dict[str, Any]
_NAMES = {"stop": "stop_sequences"}
_BUDGET = {BUDGET: "thinking.budget_tokens"}
_NO_TOOLS = "this gateway runs no tools"
_OWN_TOOL = "only tools with an input_schema that the client runs itself are supported"
_THINKS = {"enabled": True, "adaptive": True, "disabled": False}


@dataclass(frozen=True, slots=True)
class AskedMessage:
    chat: TranslatedChat
    shows_thinking: bool  # the answer has the text of the model's reasoning
    continued: str | None  # path of the assistant's message that the answer continues
    thinking_budget: int | None = None  # tokens of reasoning, at most


def translate(body: MessagesRequest, ignored: Ignored) -> AskedMessage:
    if body.max_tokens is not None and body.max_tokens < 1:
        what = "max_tokens must be at least 1: a prompt is cached here only when it is answered"
        raise InvalidRequest("max_tokens", what)
    if body.container is not None:
        raise InvalidRequest("container", f"container is not supported: {_NO_TOOLS}")
    if body.inference_geo is not None:
        ignore("inference_geo", ignored)
    return _asked(body, body, {"max_tokens": body.max_tokens, "stop": body.stop_sequences}, ignored)


def translate_count(body: MessagesCountRequest, ignored: Ignored) -> AskedMessage:
    options = ChatOptions(
        model=body.model,
        parallel_tool_calls=body.parallel_tool_calls,
        chat_template=body.chat_template,
        chat_template_kwargs=body.chat_template_kwargs,
        request_id=body.request_id,
    )
    return _asked(body, options, {}, ignored)


def _asked(
    body: MessagesRequest | MessagesCountRequest, options: ChatOptions, more: Mapping[str, Any], ignored: Ignored
) -> AskedMessage:
    if body.cache_control is not None:
        ignore("cache_control", ignored)  # the prefix cache keeps every prompt
    _check_prompt(body, ignored)
    transcript = read_messages(body.messages, body.system, ignored)
    continued = open_path(transcript)
    effort, form, form_path = _output(body, ignored)
    thinks, shows, budget = _thinking(body.thinking, ignored)
    choice, one_call = _tool_choice(body.tool_choice, ignored)
    fields: Json = {
        **more,
        "tools": [_tool(ObjectReader(tool, f"tools[{at}]", ignored)) for at, tool in enumerate(body.tools or ())],
        "tool_choice": choice,
        "reasoning_effort": effort,
        "response_format": form,
        "continue_final_message": continued is not None,
    }
    if one_call:
        fields["parallel_tool_calls"] = False
    if budget is not None:
        fields[BUDGET] = budget
    if thinks is not None:
        fields["chat_template_kwargs"] = dict.fromkeys(SWITCHES, thinks) | (options.chat_template_kwargs or {})
    names = _NAMES if budget is None else _NAMES | _BUDGET
    chat = translated_chat(
        options, transcript, fields, messages="messages", parameters="input_schema", names=names, form=form_path
    )
    return AskedMessage(chat, shows, continued, budget)


def _output(body: MessagesRequest | MessagesCountRequest, ignored: Ignored) -> tuple[str | None, Json | None, str]:
    """How hard the model shall think, the form of the answer, and the path of that form."""
    path = "output_format"
    form = body.output_format
    effort = None
    if body.output_config is not None:
        reader = ObjectReader(body.output_config, "output_config", ignored)
        effort, inner = reader.optional_text("effort"), reader.any("format")
        reader.done()
        if inner is not None:
            path, form = "output_config.format", inner
    if form is not None:
        reader = ObjectReader(form, path, ignored)
        if reader.choice("type", ("json_schema",)) is None:
            raise InvalidRequest(reader.at("type"), f"{reader.at('type')} is missing: it must be json_schema")
        if not isinstance(reader.any("schema"), dict):
            raise InvalidRequest(
                reader.at("schema"), f"{reader.at('schema')} must be a JSON schema, which is an object"
            )
    return effort, form, path


def _thinking(thinking: Json | None, ignored: Ignored) -> tuple[bool | None, bool, int | None]:
    """Whether the model shall think (None: as it likes), whether its thoughts are shown, and how many tokens they may
    have (None: as many as the answer)."""
    if thinking is None:
        return None, True, None
    reader = ObjectReader(thinking, "thinking", ignored)
    kind = reader.choice("type", tuple(_THINKS))
    if kind is None:
        raise InvalidRequest("thinking.type", f"thinking.type is missing: it must be {' or '.join(_THINKS)}")
    shown = reader.choice("display", ("summarized", "omitted")) != "omitted"
    budget = reader.count("budget_tokens") if kind == "enabled" else None
    Fields(_BUDGET).number(BUDGET, RANGES[BUDGET], budget)
    reader.done()
    return _THINKS[kind], shown, budget


def _tool_choice(choice: Json | None, ignored: Ignored) -> tuple[str | Json | None, bool]:
    """The choice as chat completions spell it, and whether the answer has one call at most."""
    if choice is None:
        return None, False
    reader = ObjectReader(choice, "tool_choice", ignored)
    kind, name = reader.choice("type", ("auto", "any", "tool", "none")), reader.optional_text("name")
    one_call = bool(reader.flag("disable_parallel_tool_use"))
    reader.done()
    if kind == "tool" and name is not None:
        return {"type": "function", "function": {"name": name}}, one_call
    if kind in (None, "tool"):
        missing = reader.at("type" if kind is None else "name")
        raise InvalidRequest(missing, f"{missing} is missing")
    return {"auto": "auto", "any": "required", "none": "none"}[str(kind)], one_call


def _tool(tool: ObjectReader) -> Json:
    """A tool as chat completions declare it."""
    kind = tool.any("type")
    if kind not in (None, "custom"):
        raise InvalidRequest(tool.at("type"), f"{tool.at('type')} is {brief(repr(kind))}; {_OWN_TOOL}")
    schema = tool.any("input_schema")
    if schema is None:
        raise InvalidRequest(tool.at("input_schema"), f"{tool.at('input_schema')} is missing; {_OWN_TOOL}")
    if not isinstance(schema, dict):
        raise InvalidRequest(tool.at("input_schema"), f"{tool.at('input_schema')} must be an object, a JSON schema")
    tool.refuse("defer_loading", (False,), "the model sees every tool from the beginning")
    tool.refuse("input_examples", ([],), "put examples into the description")
    tool.any("eager_input_streaming")  # every call streams as it grows
    function = {name: tool.any(name) for name in ("name", "description", "strict")} | {"parameters": schema}
    tool.done()
    return {"type": "function", "function": {name: value for name, value in function.items() if value is not None}}


def _check_prompt(body: MessagesRequest | MessagesCountRequest, ignored: Ignored) -> None:
    """Refuses what would put more or less into the prompt than the request holds. Edits that keep everything pass."""
    if body.mcp_servers:
        raise InvalidRequest("mcp_servers", f"mcp_servers is not supported: {_NO_TOOLS}")
    if body.compaction is not None:
        raise InvalidRequest("compaction", "compaction is not supported: shorten the conversation in messages")
    if body.thread is not None:
        refused = InvalidRequest("thread", "thread is not supported: send the whole conversation in messages")
        refused.details["error_code"] = "thread_unsupported_request"  # clients then send it whole
        raise refused
    if body.context_management is None:
        return
    reader = ObjectReader(body.context_management, "context_management", ignored)
    for at, edit in enumerate(reader.items("edits")):
        each = ObjectReader(edit, f"context_management.edits[{at}]", ignored)
        if not each.text("type").startswith("clear_thinking") or each.any("keep") != "all":
            raise InvalidRequest(each.path, f"{each.path} is not supported: edit the conversation in messages")
        each.done()
    reader.done()
