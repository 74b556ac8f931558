"""The bounds of fields in request bodies beyond their types, as JSON schema: ranges, lengths, shapes.

The front doors enforce them; ranges of numbers have one definition for both (gateway/validation/ranges.py).
tests/unit/gateway/dialects/reference/test_described_limits.py sends values at and beyond each one."""

from typing import Any

from gateway.answers.embedding import MAX_INPUTS
from gateway.dialects.openai.embeddings import FORMATS
from gateway.dialects.openai.prompts import MAX_PROMPTS
from gateway.dialects.reference.models import DescribedModel
from gateway.prompts.roles import ROLE
from gateway.receipts.draft import MAX_CLASS_CHARACTERS
from gateway.text.tools import MAX_TOOLS
from gateway.validation.adjustments import MAX_BAD_WORD_CHARACTERS, MAX_BAD_WORDS, MAX_BIASES
from gateway.validation.logits import MAX_LOGPROB_IDS
from gateway.validation.ranges import ADJUSTMENTS, BIASES, MAX_SALT_CHARACTERS, RANGES, Range, listed_range
from gateway.validation.validate import (
    MAX_AFFINITY_CHARACTERS,
    MAX_CHOICES,
    MAX_STOP_CHARACTERS,
    MAX_STOP_IDS,
)
from mesh.config.door_config import DoorConfig

Json = dict[str, Any]
_LISTED = ("logprobs", "top_logprobs", "prompt_logprobs", "top_logprobs_num")
_BUDGETS = ("thinking_token_budget", "max_thinking_tokens")
_NAME = {"type": "string", "pattern": "^[a-zA-Z0-9_.-]{1,64}$"}
_FUNCTION = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": _NAME,
        "description": {"type": ["string", "null"]},
        "parameters": {"type": ["object", "null"], "description": "JSON schema of the arguments"},
        "strict": {"type": ["boolean", "null"]},
    },
}
_TOOL = {
    "type": "object",
    "required": ["function"],
    "properties": {"type": {"enum": ["function"]}, "function": _FUNCTION},
}
_PART = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {"type": {"enum": ["text", "input_text", "output_text"]}, "text": {"type": "string"}},
}
_TEXTS = {"anyOf": [{"type": "string"}, {"type": "array", "items": _PART}]}
_SPOKEN = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "role": {"type": "string", "pattern": f"^{ROLE.pattern}$"},
        "content": _TEXTS,
        "reasoning": {"type": ["string", "null"]},
        "reasoning_content": {"type": ["string", "null"]},
    },
}
_CALLING = {
    "type": "object",
    "required": ["role", "tool_calls"],
    "properties": {"role": {"const": "assistant"}, "tool_calls": {"type": "array", "items": {"type": "object"}}},
}
_RESULT = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "role": {"const": "tool"},
        "content": _TEXTS,
        "tool_call_id": {"type": ["string", "null"], "description": "of the call that the message answers"},
    },
}
_TOOL_CHOICE = {
    "type": "object",
    "required": ["type"],
    "properties": {"type": {"enum": ["function", "allowed_tools"]}},
}
_SCHEMA = {
    "type": "object",
    "required": ["schema"],
    "properties": {
        "name": {"type": ["string", "null"]},
        "schema": {"type": "object"},
        "strict": {"type": ["boolean", "null"]},
    },
}
_RESPONSE_FORMAT = {
    "anyOf": [
        {
            "type": "object",
            "required": ["type"],
            "properties": {"type": {"enum": ["text", "json_object", "structural_tag"]}},
        },
        {
            "type": "object",
            "required": ["type", "json_schema"],
            "properties": {"type": {"const": "json_schema"}, "json_schema": _SCHEMA},
        },
    ]
}
_STRUCTURED = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "json": {"type": ["object", "string", "boolean", "null"]},
        "json_object": {"type": ["boolean", "null"]},
        "regex": {"type": ["string", "null"]},
        "choice": {"type": ["array", "null"], "items": {"type": "string", "minLength": 1}},
        "grammar": {"type": ["string", "null"], "description": "Lark, as llguidance reads it, or GBNF"},
        "structural_tag": {"type": ["object", "string", "null"]},
        "disable_any_whitespace": {"type": ["boolean", "null"]},
        "whitespace_pattern": {"type": ["string", "null"]},
        "disable_fallback": {"type": ["boolean", "null"]},
        "disable_additional_properties": {"enum": [False, None]},
    },
}


def bounds(limits: DoorConfig, model: DescribedModel) -> dict[str, dict[str, Json]]:
    """Field -> JSON type -> what is added to the schema of that type. A field means the same in every body."""
    context, ids = model.context_tokens, {"type": "integer", "minimum": 0, "maximum": model.vocabulary - 1}
    count, tokens = Range(1, min(MAX_CHOICES, limits.choices)).schema, Range(0, context).schema
    text = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARACTERS}
    listed = listed_range(limits.max_logprobs, model.vocabulary)
    digits = {"pattern": "^[0-9]{1,19}$"}
    return {
        "n": {"integer": count},
        "best_of": {"integer": count},
        **{key: {"integer": tokens} for key in ("max_tokens", "max_completion_tokens", "max_new_tokens")},
        **{key: {"integer": tokens} for key in ("min_tokens", "min_new_tokens")},
        **{key: {"number": RANGES[key].schema} for key in ("temperature", "top_p", "min_p")},
        **{key: {"integer": RANGES[key].schema} for key in ("top_k", "priority")},
        **{key: {"number": each.schema} for key, each in ADJUSTMENTS.items()},
        "logit_bias": {
            "object": {
                "maxProperties": MAX_BIASES,
                "propertyNames": digits,
                "additionalProperties": {"type": "number"} | BIASES.schema,
            }
        },
        "bad_words": {
            "array": {
                "maxItems": MAX_BAD_WORDS,
                "items": {"type": "string", "minLength": 1, "maxLength": MAX_BAD_WORD_CHARACTERS},
            }
        },
        "allowed_token_ids": {"array": {"minItems": 1, "maxItems": model.vocabulary, "items": ids}},
        **{key: {"integer": RANGES["seed"].schema} for key in ("seed", "sampling_seed")},
        **{key: {"integer": RANGES["thinking_token_budget"].schema} for key in _BUDGETS},
        "stop": {"string": text, "array": {"maxItems": limits.stop_strings, "items": text}},
        "stop_token_ids": {"array": {"maxItems": MAX_STOP_IDS, "items": ids}},
        "truncate_prompt_tokens": {"integer": {"minimum": -1, "not": {"const": 0}}},
        "truncation_side": {"string": {"enum": ["left", "right"]}},
        **{key: {"integer": listed.schema} for key in _LISTED},
        "logprob_token_ids": {"array": {"maxItems": MAX_LOGPROB_IDS, "uniqueItems": True, "items": ids}},
        "logprob_start_len": {"integer": {"minimum": -1}},
        "cache_salt": {"string": {"maxLength": MAX_SALT_CHARACTERS}},
        **{key: {"string": {"maxLength": MAX_AFFINITY_CHARACTERS}} for key in ("prompt_cache_key", "session_id")},
        **{key: {"string": {"pattern": r"^[\x21-\x7e]{1,128}$"}} for key in ("request_id", "rid")},
        "fingerprint": {"string": {"minLength": 1, "maxLength": MAX_CLASS_CHARACTERS}},  # numerics class's fingerprint
        "prompt": {"array": _lists(ids, MAX_PROMPTS)},
        "input": {"array": _lists(ids, MAX_INPUTS)},
        "input_ids": {"array": {"anyOf": _lists(ids, MAX_PROMPTS)["anyOf"][1:]}},
        "text": {"array": {"minItems": 1, "maxItems": MAX_PROMPTS}},
        "token_ids": {"array": {"minItems": 1, "items": ids}},
        "tokens": {"array": {"items": ids}},
        "encoding_format": {"string": {"enum": list(FORMATS)}},
        "dimensions": {"integer": {"minimum": 1}},
        "messages": {"array": {"minItems": 1, "items": {"anyOf": [_SPOKEN, _CALLING, _RESULT]}}},
        "tools": {"array": {"maxItems": MAX_TOOLS, "items": _TOOL}},
        "tool_choice": {"string": {"enum": ["none", "auto", "required"]}, "object": _TOOL_CHOICE},
        "response_format": {"object": _RESPONSE_FORMAT},
        "structured_outputs": {"object": _STRUCTURED},
    }


def _lists(ids: Json, most: int) -> Json:
    """Texts, token ids, or lists of token ids; never mixed."""
    texts = {"type": "string"}
    each = {"type": "array", "minItems": 1, "items": ids}
    several = {"minItems": 1, "maxItems": most}
    return {"anyOf": [several | {"items": texts}, {"minItems": 1, "items": ids}, several | {"items": each}]}
