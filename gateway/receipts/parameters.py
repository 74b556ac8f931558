"""The parameters of a request that decide about its tokens, as a receipt has them.

Numbers stand there as they are, so that `baton replay` can send them again; fractions as texts, exactly. Of texts and
lists only a hash stands there: a receipt may be shown to those who may not read the request."""

import json
from typing import Any

from gateway.receipts.canonical import Json
from gateway.receipts.hashes import digest, id_bytes
from gateway.text.tool_calls import AnswerFormat
from gateway.validation.validate import ValidRequest
from mesh.messages.jobs import Adjustments

HASHED = (
    "stop",
    "stop_token_ids",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "grammar",
    "tools",
)  # parameters that a receipt has as hashes of what the client sent; null where it sent nothing


def parameters_of(valid: ValidRequest) -> Json | None:
    """The parameters, or None where nothing was sampled for this request."""
    if not valid.choices:
        return None
    request, sampling = valid.request, valid.choices[0].sampling
    adjusted = sampling.adjustments or Adjustments()
    return {
        "n": request.n or 1,
        "best_of": request.best_of,
        "temperature": repr(float(sampling.temperature)),
        "top_p": repr(float(sampling.top_p)),
        "top_k": sampling.top_k,
        "min_p": repr(float(sampling.min_p)),
        "max_tokens": sampling.max_tokens,
        "min_tokens": sampling.min_tokens,
        "frequency_penalty": repr(float(adjusted.frequency_penalty)),
        "presence_penalty": repr(float(adjusted.presence_penalty)),
        "repetition_penalty": repr(float(adjusted.repetition_penalty)),
        "no_repeat_ngram": adjusted.no_repeat_ngram,
        "ignore_eos": request.ignore_eos,
        "skip_special_tokens": request.skip_special,
        "eos_token_ids": _hashed("eos_token_ids", sorted(valid.eos_ids)),
        "suppressed_token_ids": _hashed("suppressed_token_ids", sorted(adjusted.suppressed_ids)),
        "stop": _hashed("stop", list(request.stop)),
        "stop_token_ids": _hashed("stop_token_ids", sorted(set(request.stop_token_ids))),
        "logit_bias": _hashed("logit_bias", sorted((each.token, repr(each.bias)) for each in adjusted.biases)),
        "allowed_token_ids": digest("allowed_token_ids", adjusted.allowed) if adjusted.allowed else None,
        "bad_words": _hashed("bad_words", sorted(each.tokens for each in adjusted.bad_words)),
        "grammar": digest("grammar", sampling.grammar.encode("utf-8", "surrogatepass")) if sampling.grammar else None,
        "tools": _tools(request.reading),
    } | _where_given(adapter=valid.choices[0].digest or None, thinking_token_budget=_thinking(adjusted))


def _where_given(**values: Any) -> Json:
    """Parameters that stand in a receipt only where a request has them."""
    return {name: value for name, value in values.items() if value is not None}


def _thinking(adjusted: Adjustments) -> int | None:
    return None if adjusted.reasoning is None else adjusted.reasoning.tokens


def _hashed(kind: str, values: list[Any]) -> str | None:
    if not values:
        return None
    if isinstance(values[0], int):
        return digest(kind, id_bytes(values))
    return digest(kind, json.dumps(values, separators=(",", ":")).encode())


def _tools(reading: AnswerFormat) -> str | None:
    """Hash of what in the tools decides where an answer ends. Prompt and grammar, which have hashes, hold the rest."""
    use = reading.use
    return _hashed("tools", [use.mode.value, use.parallel, *sorted(use.names)]) if use.tools else None
