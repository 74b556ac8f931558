"""Checks what a request asks of single logits, which not all workers can do: adjustments, logprobs of named tokens."""

from gateway.core.interface import ModelFacts
from gateway.validation.adjustments import adjusting_field
from gateway.validation.client_request import ClientRequest
from gateway.validation.fields import Fields
from gateway.validation.ranges import MAX_TOP_LOGPROBS

MAX_LOGPROB_IDS = 128


def validate_logits(request: ClientRequest, fields: Fields, facts: ModelFacts, vocabulary: int) -> None:
    ids = request.logprob_ids
    if ids and request.top_logprobs is None:
        raise fields.invalid("logprob_ids", "needs logprobs: ask for them too")
    if len(ids) > MAX_LOGPROB_IDS:
        raise fields.invalid("logprob_ids", f"has {len(ids)} ids; at most {MAX_LOGPROB_IDS} are allowed")
    if len(set(ids)) != len(ids):
        raise fields.invalid("logprob_ids", "holds a token id twice: name each once")
    fields.token_ids("logprob_ids", ids, vocabulary)
    many = (request.top_logprobs or 0) > MAX_TOP_LOGPROBS
    if facts.adjusts_logits or (request.adjustments is None and not ids and not many):
        return
    name, what = "logprob_ids", "look up no single logits"
    if request.adjustments is not None:
        name, what = adjusting_field(request.adjustments), "do not adjust logits"
    elif many:
        name, what = "top_logprobs", f"list at most {MAX_TOP_LOGPROBS} likeliest tokens"
    raise fields.invalid(name, f"cannot be honoured: the attached workers, which run on GPUs, {what}")
