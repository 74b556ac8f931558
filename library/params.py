"""How tokens are drawn and where an answer ends: names and defaults of vLLM's SamplingParams."""

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields
from typing import Any

DEFAULT_MAX_TOKENS = 16
STRUCTURED = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
# Fields with values that ask for nothing, and why other values are refused.
REFUSED: Mapping[str, str] = {
    "logits_processors": "workers run no functions of clients; use logit_bias, allowed_token_ids or structured_outputs",
    "extra_args": "no worker reads it",
    "guided_decoding": "it was replaced by structured_outputs upstream",
}
_WHOLE = (
    *("n", "top_k", "seed", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs", "truncate_prompt_tokens"),
    "thinking_token_budget",
)
_NUMBERS = ("presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p", "min_p")
_SWITCHES = ("include_stop_str_in_output", "ignore_eos", "detokenize", "skip_special_tokens")
_TEXTS, _IDS = ("bad_words",), ("stop_token_ids", "allowed_token_ids")


@dataclass(kw_only=True)
class StructuredOutputsParams:
    """The form of an answer: one of these, as docs/structured-output.md explains them."""

    json: Any = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: Any = None


@dataclass(kw_only=True)
class SamplingParams:
    """A field that is None is left to the model and its folder. Ranges are those of a request over HTTP."""

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = DEFAULT_MAX_TOKENS  # None, and more than fits: as many as the context has room for
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True  # false: outputs have token ids and no text
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    structured_outputs: Any = None  # StructuredOutputsParams, or a dict with one of its fields
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    thinking_token_budget: int | None = None  # tokens of reasoning, behind which its end is forced
    logits_processors: Any = field(default=None, repr=False)
    extra_args: Any = field(default=None, repr=False)
    guided_decoding: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name, why in REFUSED.items():
            if getattr(self, name):
                raise ValueError(f"{name} is not supported: {why}")
        for name in _WHOLE:
            if (value := getattr(self, name)) is not None:
                setattr(self, name, whole_number(name, value))
        for name in _NUMBERS:
            setattr(self, name, finite_number(name, getattr(self, name)))
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be True or False, not {getattr(self, name)!r}")
        self._check_lists()
        self._check_ranges()

    def clone(self) -> "SamplingParams":
        return deepcopy(self)

    def body(self) -> dict[str, Any]:
        """The fields of a completion over HTTP."""
        left_out = (*REFUSED, "detokenize", "spaces_between_special_tokens", "structured_outputs", "logit_bias")
        names = [each.name for each in fields(self) if each.name not in left_out]
        found = {name: value for name in names if (value := getattr(self, name)) is not None}
        if self.logit_bias is not None:
            found["logit_bias"] = {str(token): bias for token, bias in self.logit_bias.items()}
        if self.structured_outputs is not None:
            found["structured_outputs"] = _structure(self.structured_outputs)
        return found

    def _check_lists(self) -> None:
        if self.stop is not None:
            self.stop = self.stop if isinstance(self.stop, str) else texts_of("stop", self.stop)
        for name in _TEXTS:
            if (value := getattr(self, name)) is not None:
                setattr(self, name, texts_of(name, value))
        for name in _IDS:
            if (value := getattr(self, name)) is not None:
                setattr(self, name, ids_of(name, value))
        if self.logit_bias is not None:
            if not isinstance(self.logit_bias, Mapping):
                raise TypeError(f"logit_bias must be a dict of token ids and numbers, not {_kind(self.logit_bias)}")
            pairs = self.logit_bias.items()
            self.logit_bias = {
                whole_number("logit_bias", token): finite_number("logit_bias", bias) for token, bias in pairs
            }

    def _check_ranges(self) -> None:
        from gateway.validation.ranges import ADJUSTMENTS, RANGES, Range

        if self.max_tokens is not None and self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, not {self.max_tokens}")
        if self.n < 1:
            raise ValueError(f"n must be at least 1, not {self.n}")
        if self.min_tokens < 0 or self.min_tokens > (self.max_tokens or self.min_tokens):
            raise ValueError(f"min_tokens must be from 0 to max_tokens ({self.max_tokens}), not {self.min_tokens}")
        listed = Range(-1)  # the mesh knows how many it lists; -1: the whole vocabulary
        ranges = {**RANGES, **ADJUSTMENTS, "logprobs": listed, "prompt_logprobs": listed}
        for name, bounds in ranges.items():
            value = getattr(self, name, None)
            if value is not None and not bounds.holds(value):
                raise ValueError(f"{name} must be {bounds.words}, not {value}")


def whole_number(name: str, value: Any) -> int:
    """A whole number of any kind, such as numpy's, as Python's."""
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise TypeError(f"{name} must be a whole number, not {value!r}")


def finite_number(name: str, value: Any) -> float:
    try:
        number = float(value) if not isinstance(value, str | bytes | bool) else math.nan
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{name} must be a finite number, not {value!r}")
    return number


def texts_of(name: str, value: Any) -> list[str]:
    listed = listed_of(name, value, "texts")
    if not all(isinstance(each, str) for each in listed):
        raise TypeError(f"{name} must be a list of texts")
    return listed


def ids_of(name: str, value: Any) -> list[int]:
    return [whole_number(f"{name}, a list of token ids,", each) for each in listed_of(name, value, "token ids")]


def listed_of(name: str, value: Any, what: str) -> list[Any]:
    if isinstance(value, str | bytes | bytearray | Mapping | set | frozenset) or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be a list of {what}, not {_kind(value)}")
    return list(value)


def _kind(value: Any) -> str:
    return f"{value!r}"[:60] if isinstance(value, str | int | float | None) else type(value).__name__


def _structure(wanted: Any) -> dict[str, Any]:
    if isinstance(wanted, Mapping):
        return dict(wanted)
    found = {name: value for name in STRUCTURED if (value := getattr(wanted, name, None)) is not None}
    if "choice" in found:
        found["choice"] = texts_of("structured_outputs.choice", found["choice"])
    if not found:
        raise ValueError(f"structured_outputs must have one of {', '.join(STRUCTURED)}")
    return found
