"""The fields of a beam search over HTTP, as vLLM and transformers spell them."""

import math

from gateway.dialects.openai.types import CommonRequest
from gateway.validation.client_request import BeamOptions
from mesh.errors import InvalidRequest

NEVER = "never"


def beams_of(body: CommonRequest, top_logprobs: int | None) -> BeamOptions | None:
    """The beam search that the request asks for, if it does."""
    if not body.use_beam_search:
        for name, neutral in (("length_penalty", 1.0), ("early_stopping", False)):
            if getattr(body, name) not in (None, neutral):
                raise InvalidRequest(name, f"{name} belongs to a beam search: set use_beam_search")
        return None
    if body.stream:
        raise InvalidRequest("use_beam_search", "use_beam_search excludes stream: which answers are best is known last")
    penalty, early = 1.0 if body.length_penalty is None else body.length_penalty, body.early_stopping
    if not (math.isfinite(penalty) and -10.0 <= penalty <= 10.0):
        raise InvalidRequest("length_penalty", f"length_penalty must be from -10 to 10, not {penalty:g}")
    if isinstance(early, str) and early != NEVER:
        raise InvalidRequest("early_stopping", f"early_stopping must be true, false or {NEVER!r}")
    return BeamOptions(body.best_of or body.n or 1, penalty, early or False, top_logprobs)
