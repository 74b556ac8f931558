"""Checks a request with beam search: it may ask for nothing that changes which token comes next."""

from gateway.validation.adjustments import adjusting_field
from gateway.validation.client_request import BeamOptions, ClientRequest
from gateway.validation.fields import Fields
from gateway.validation.ranges import MAX_TOP_LOGPROBS

FIELD = "use_beam_search"
_ALONE = ("stop", "min_tokens", "grammar", "prompt_logprobs", "logprob_ids", "emitted")
_WHY = f"cannot be combined with {FIELD}: beams are ranked by the model's own logprobs"


def validate_beams(request: ClientRequest, beams: BeamOptions, fields: Fields, ends: int) -> None:
    """`ends`: ids that end an answer."""
    for name in _ALONE:
        if getattr(request, name):
            raise fields.invalid(name, _WHY)
    if request.adjustments is not None:
        raise fields.invalid(adjusting_field(request.adjustments), _WHY)
    if request.temperature not in (None, 0.0, 1.0):
        raise fields.invalid("temperature", f"must be left out, 0 or 1 with {FIELD}: no token is drawn")
    count, most = request.n or 1, MAX_TOP_LOGPROBS - ends
    if not 1 <= beams.width <= most:
        what = f"asks for {beams.width} beams; with {ends} ids that end an answer at most {most} are kept"
        raise fields.invalid("best_of" if request.n != beams.width else "n", what)
    if count > beams.width:
        raise fields.invalid("best_of", f"is {beams.width}, and n asks for {count} of these beams")
