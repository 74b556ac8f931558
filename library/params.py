"""How tokens are drawn and where an answer ends: names and defaults of vLLM's SamplingParams."""

from collections.abc import Mapping, Sequence
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


@dataclass(kw_only=True)
class SamplingParams:
    """A field that is None is left to the model and its folder. The mesh checks values, and errors name the field."""

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
    max_tokens: int | None = DEFAULT_MAX_TOKENS  # None: as many as the model's context has room for
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True  # false: outputs have token ids and no text
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    structured_outputs: Any = None  # a dict, or an object with attributes, of json, regex, choice or grammar
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    logits_processors: Any = field(default=None, repr=False)
    extra_args: Any = field(default=None, repr=False)
    guided_decoding: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name, why in REFUSED.items():
            if getattr(self, name) is not None:
                raise ValueError(f"{name} is not supported: {why}")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, not {self.max_tokens}")

    def body(self) -> dict[str, Any]:
        """The fields of a completion over HTTP."""
        left_out = (*REFUSED, "detokenize", "spaces_between_special_tokens", "structured_outputs", "logit_bias")
        names = [each.name for each in fields(self) if each.name not in left_out]
        found = {name: value for name in names if (value := getattr(self, name)) is not None}
        for name in ("stop", "stop_token_ids", "bad_words", "allowed_token_ids"):
            if name in found and not isinstance(found[name], str):
                found[name] = list(found[name])
        if self.logit_bias is not None:
            found["logit_bias"] = {str(token): bias for token, bias in self.logit_bias.items()}
        if self.structured_outputs is not None:
            found["structured_outputs"] = _structure(self.structured_outputs)
        return found


def _structure(wanted: Any) -> dict[str, Any]:
    if isinstance(wanted, Mapping):
        return dict(wanted)
    found = {name: value for name in STRUCTURED if (value := getattr(wanted, name, None)) is not None}
    if not found:
        raise ValueError(f"structured_outputs must have one of {', '.join(STRUCTURED)}")
    return found
