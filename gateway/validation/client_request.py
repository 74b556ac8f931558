"""A client's request as every front door hands it to gateway/validation/validate.py, and the check of its name."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.text.tool_calls import PLAIN, AnswerFormat
from gateway.tracing.record import RequestRecord, unrecorded
from mesh.errors import InvalidRequest
from mesh.messages.jobs import Adjustments

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


@dataclass(frozen=True, slots=True)
class BeamOptions:
    width: int  # beams that are kept
    length_penalty: float = 1.0  # above 0 longer answers gain
    early_stopping: bool | str = False  # true: as soon as there are as many answers as beams; never: when none can gain
    top_logprobs: int | None = None  # that the client gets of each token


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A request as any front door understands it; None: the client left the field out."""

    request_id: str
    prompt: tuple[int, ...]  # token ids
    model: str | None = None
    n: int | None = None
    best_of: int | None = None  # choices that are generated; the front door returns the best n of them
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    adjustments: Adjustments | None = None  # checked by gateway/validation/adjustments.py
    thinking_token_budget: int | None = None  # tokens of reasoning, behind which its end is forced; -1: no limit
    ignore_eos: bool = False
    include_stop: bool = False
    skip_special: bool = True
    top_logprobs: int | None = None  # None: no logprobs
    logprob_ids: tuple[int, ...] = ()  # the logprobs of these come in place of the likeliest tokens'
    prompt_logprobs: int | None = None  # likeliest tokens at each position of the prompt; None: no logprobs of it
    grammar: str = ""  # what the answer follows, compiled by gateway/structured/check.py; empty: anything
    free_form: bool = False  # the grammar lets any text stand around what it demands
    reading: AnswerFormat = PLAIN  # how text, reasoning and tool calls of the answer are told apart
    emitted: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  # tokens that the client has, by choice
    numerics: str = ""  # numerics class of `emitted`
    numerics_of: Mapping[int, str] = field(default_factory=dict)  # numerics class of choices where it differs
    allow_class_change: bool = False
    salt: str = ""
    affinity: str = ""  # requests with equal ones prefer equal workers
    priority: int = 0
    deadline_seconds: float | None = None
    beams: BeamOptions | None = None  # the answers are the best ones of a beam search; None: they are sampled
    beside_tokens: int = 0  # tokens of the other prompts that the client has sent with this one
    prompts: int = 1  # that the client has sent together, this one included
    trace: RequestRecord = field(default_factory=unrecorded, compare=False)
    field_names: Mapping[str, str] = field(default_factory=dict)  # spelling of the front door, where it differs


def validate_request_id(request_id: str) -> str:
    if not is_request_id(request_id):
        what = "request_id must be 1 to 128 printable ASCII characters without spaces, and not . or .."
        raise InvalidRequest("request_id", what)
    return request_id


def is_request_id(text: str) -> bool:
    """Whether the name can stand alone in the path of a URL too: `.` and `..` cannot."""
    return _REQUEST_ID.fullmatch(text) is not None and text not in (".", "..")
