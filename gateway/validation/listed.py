"""How many of the likeliest tokens a request may list at each position: as many as the setting `max_logprobs` allows.

Step 1 of a request's life. −1 is the whole vocabulary. What a request lists in all is bounded too: lists are held in
memory, made into text and sent, and none of that may hold up others."""

from dataclasses import replace

from gateway.prompts.lengths import MAX_LISTED
from gateway.validation.client_request import ClientRequest
from gateway.validation.fields import Fields
from gateway.validation.ranges import MAX_TOP_LOGPROBS, listed_range
from mesh.config.door_config import DoorConfig
from mesh.errors import InvalidRequest

SETTING = "max_logprobs"


def listed_count(asked: int | None, field: str, most: int, vocabulary: int) -> int | None:
    """The number of tokens; None: no logprobs are wanted. `most`: the setting."""
    if asked is None:
        return None
    allowed = listed_range(most, vocabulary)
    if allowed.holds(asked):
        return vocabulary if asked == -1 else asked
    what = f"{field} must be {allowed.words}, not {asked}"
    if asked == -1:
        what += f": the whole vocabulary has {vocabulary} tokens, and this gateway's setting {SETTING} is {most}"
    raise InvalidRequest(field, what)


def with_listed_logprobs(
    request: ClientRequest, fields: Fields, limits: DoorConfig, vocabulary: int, *, max_tokens: int
) -> ClientRequest:
    """The request with both numbers of likeliest tokens settled."""
    most = limits.max_logprobs
    listed = listed_count(request.top_logprobs, fields.name("top_logprobs"), most, vocabulary)
    of_prompt = listed_count(request.prompt_logprobs, fields.name("prompt_logprobs"), most, vocabulary)
    top, choices = listed or 0, request.prompts * (request.best_of or request.n or 1)  # the whole answer has them
    if top > MAX_TOP_LOGPROBS and request.beams is not None:
        raise fields.invalid("top_logprobs", f"must be at most {MAX_TOP_LOGPROBS} with use_beam_search")
    if top > MAX_TOP_LOGPROBS and choices * max_tokens * (1 + top) > MAX_LISTED:
        what = f"would list more than {MAX_LISTED} logprobs in one answer: lower {fields.name('max_tokens')} or the"
        parts = "prompts and choices" if request.prompts > 1 else "choices"
        raise fields.invalid("top_logprobs", f"{what} number of {parts}, or ask for fewer likeliest tokens")
    return replace(request, top_logprobs=listed, prompt_logprobs=of_prompt)
