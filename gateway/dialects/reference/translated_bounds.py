"""Bounds of fields that mean another thing in `/v1/responses`, `/v1/messages` and `/api/…` than in
gateway/dialects/reference/bounds.py.

A body is named by its msgspec type. gateway/dialects/responses/request.py, gateway/dialects/anthropic/request.py and
gateway/dialects/ollama/request.py enforce what stands here."""

from typing import Any

from gateway.dialects.reference.models import DescribedModel
from gateway.receipts.draft import MAX_CLASS_CHARACTERS
from gateway.text.tools import MAX_TOOLS
from gateway.validation.ranges import MAX_TOP_LOGPROBS, RANGES
from gateway.validation.validate import MAX_STOP_CHARACTERS
from mesh.config.door_config import DoorConfig

Json = dict[str, Any]
_NAME = {"type": "string", "pattern": "^[a-zA-Z0-9_.-]{1,64}$"}
_TEXT = {"type": "string"}
_NEVER: Json = {"not": {}}  # only null and an absent field pass


def _object(needs: str, **properties: Json) -> Json:
    """`needs`: the members that must be there; a null in place of any other one is as good as none."""
    required = needs.split()
    found = {name: form if name in required else _or_null(form) for name, form in properties.items()}
    return {"type": "object", "required": required, "properties": found}


def _or_null(form: Json) -> Json:
    return {"anyOf": [form, {"type": "null"}]}


def _tools(schema: str, *, kind: str, needs: str) -> Json:
    """`schema`: the member with the JSON schema of the arguments."""
    about: Json = {"description": _TEXT, "strict": {"type": "boolean"}, schema: {"type": "object"}}
    return {"array": {"maxItems": MAX_TOOLS, "items": _object(needs, type={"enum": [kind]}, name=_NAME, **about)}}


_PART = _object("type text", type={"enum": ["input_text", "output_text", "text"]}, text=_TEXT)
_TEXTS = {"anyOf": [_TEXT, {"type": "array", "items": _PART}]}
_ITEMS = [
    _object("role content", type={"enum": ["message"]}, role={"enum": ["user", "assistant"]}, content=_TEXTS),
    _object("role content", role={"enum": ["system", "developer"]}, content=_TEXTS),
    _object("type", type={"enum": ["reasoning"]}, content=_TEXTS),
    _object(
        "type call_id name",
        type={"enum": ["function_call"]},
        call_id=_TEXT,
        name=_TEXT,
        arguments={"type": "string", "contentMediaType": "application/json"},
    ),
    _object("type call_id output", type={"enum": ["function_call_output"]}, call_id=_TEXT, output=_TEXTS),
]
_BLOCK = _object("type text", type={"enum": ["text"]}, text=_TEXT)
_BLOCKS = [
    _BLOCK,
    _object("type thinking", type={"enum": ["thinking"]}, thinking=_TEXT, signature=_TEXT),
    _object("type id name input", type={"enum": ["tool_use"]}, id=_TEXT, name=_TEXT, input={"type": "object"}),
    _object("type tool_use_id", type={"enum": ["tool_result"]}, tool_use_id=_TEXT, content=_TEXT),
    _object("type data", type={"enum": ["redacted_thinking"]}, data=_TEXT),
]


_OLLAMA_MESSAGES = [
    _object("role", role={"enum": ["user", "system", "assistant"]}, content=_TEXT, thinking=_TEXT),
]
_OLLAMA_TOOL = _object("function", type={"enum": ["function"]}, function=_object("name", name=_NAME, description=_TEXT))
_OLLAMA_OPTIONS: Json = {
    "temperature": {"type": "number", "minimum": 0, "maximum": 100},
    "top_k": {"type": "integer", "minimum": -1},
    "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    "min_p": {"type": "number", "minimum": 0, "maximum": 1},
    "seed": {"type": "integer"},
    "num_predict": {"type": "integer", "minimum": -2},
    "repeat_penalty": {"type": "number", "exclusiveMinimum": 0, "maximum": 100},
    "presence_penalty": {"type": "number", "minimum": -2, "maximum": 2},
    "frequency_penalty": {"type": "number", "minimum": -2, "maximum": 2},
    "stop": {"type": "array", "items": _TEXT | {"minLength": 1}, "maxItems": 16},
}


def translated_bounds(limits: DoorConfig, model: DescribedModel) -> dict[str, dict[str, dict[str, Json]]]:
    """Type of a body -> field -> JSON type -> what is added to the schema of that type."""
    tokens = {"minimum": 0, "maximum": model.context_tokens}
    stops = {"maxItems": limits.stop_strings, "items": _TEXT | {"minLength": 1, "maxLength": MAX_STOP_CHARACTERS}}
    said = {"anyOf": [_TEXT, {"type": "array", "minItems": 1, "items": {"anyOf": _BLOCKS}}]}
    ollama: dict[str, dict[str, Json]] = {
        "format": {"string": {"enum": ["json", ""]}},
        "think": {"string": {"enum": ["low", "medium", "high"]}},
        "options": {"object": _object("", **_OLLAMA_OPTIONS)},
        **{name: {"boolean": {"enum": [False]}, "integer": {"enum": [0]}} for name in ("logprobs", "top_logprobs")},
    }
    asked: dict[str, dict[str, Json]] = {
        "messages": {
            "array": {
                "minItems": 1,
                "items": _object("role content", role={"enum": ["user", "assistant", "system"]}, content=said),
            }
        },
        "system": {"array": {"items": _BLOCK}},
        "tools": _tools("input_schema", kind="custom", needs="name input_schema"),
        "tool_choice": {"object": _object("type", type={"enum": ["auto", "any", "tool", "none"]}, name=_TEXT)},
        "thinking": {
            "object": _object(
                "type",
                type={"enum": ["enabled", "adaptive", "disabled"]},
                budget_tokens={"type": "integer", "minimum": 0, "maximum": RANGES["thinking_token_budget"].high},
            )
        },
        "output_format": {"object": _object("type schema", type={"enum": ["json_schema"]}, schema={"type": "object"})},
        "context_management": {"object": {"properties": {"edits": {"type": ["array", "null"], "maxItems": 0}}}},
        "mcp_servers": {"array": {"maxItems": 0}},
        **{name: {"object": _NEVER} for name in ("thread", "compaction")},
    }
    return {
        "ResponsesRequest": {
            "input": {"array": {"minItems": 1, "items": {"anyOf": _ITEMS}}},
            "max_output_tokens": {"integer": tokens},
            "top_logprobs": {"integer": {"minimum": 0, "maximum": MAX_TOP_LOGPROBS}},
            "tools": _tools("parameters", kind="function", needs="type name"),
            **{name: {"boolean": {"enum": [False]}} for name in ("store", "background")},
            "truncation": {"string": {"enum": ["disabled"]}},
            "previous_response_id": {"string": _NEVER},
            "conversation": {"string": _NEVER, "object": _NEVER},
            "context_management": {"array": {"maxItems": 0}},
            **{name: {"object": _NEVER} for name in ("prompt", "moderation")},
            "text": {"object": _object("", format=_object("type", type={"enum": ["text", "json_object"]}))},
            "reasoning": {"object": _object("", effort=_TEXT)},
        },
        "MessagesRequest": {
            **asked,
            "max_tokens": {"integer": {"minimum": 1}},  # more than fits is as good as what fits
            "stop_sequences": {"array": stops},
            "container": {"string": _NEVER, "object": _NEVER},
        },
        "MessagesCountRequest": asked,
        "OllamaChatRequest": {
            **ollama,
            "messages": {"array": {"items": {"anyOf": _OLLAMA_MESSAGES}}},
            "tools": {"array": {"maxItems": MAX_TOOLS, "items": _OLLAMA_TOOL}},
        },
        "OllamaGenerateRequest": {
            **ollama,
            "template": {"string": {"maxLength": 0}},
            **{name: {"array": {"maxItems": 0}} for name in ("context", "images")},
        },
        "OllamaEmbedRequest": {"input": {"array": {}, "string": {}}},  # none at all loads the model
        "NumericsFields": {"name": {"string": {"minLength": 1, "maxLength": MAX_CLASS_CHARACTERS}}},
    }
