"""How messages of gRPC APIs spell the fields of a request, for the errors of gateway/validation/validate.py and its
helpers."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gateway.prompts.lengths import MAX_LISTED
from mesh.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Names:
    """How a message spells its fields."""

    text: str
    token_ids: str
    form: str  # message or field that holds the form of the answer
    json: str  # field of it that holds a JSON schema
    listed: int  # logprobs of a prompt in one answer, at most
    others: Mapping[str, str]  # by their names in ClientRequest


NAMES = Names(
    text="text",
    token_ids="token_ids",
    form="structured_output",
    json="json_schema",
    listed=MAX_LISTED,
    others={
        **{
            name: f"sampling.{name}"
            for name in (
                "temperature",
                "top_p",
                "top_k",
                "min_p",
                "seed",
                "n",
                "frequency_penalty",
                "presence_penalty",
                "repetition_penalty",
                "logit_bias",
                "bad_words",
                "allowed_token_ids",
                "best_of",
                "thinking_token_budget",
            )
        },
        "max_tokens": "stop.max_tokens",
        "min_tokens": "stop.min_tokens",
        "stop": "stop.strings",
        "stop_token_ids": "stop.token_ids",
        "ignore_eos": "stop.ignore_eos",
        "top_logprobs": "logprobs.top",
        "logprob_ids": "logprobs.token_ids",
        "salt": "cache_salt",
        "affinity": "affinity_key",
    },
)


def respelled(error: InvalidRequest, names: Mapping[str, str]) -> InvalidRequest:
    """The error with the client's spelling of its field. `names`: how a path begins, and how the client's path does."""
    for ours, theirs in names.items():
        begin = re.compile(rf"(?<![\w.]){re.escape(ours)}(?!\w)")
        if error.field is not None and begin.match(error.field):
            return InvalidRequest(begin.sub(theirs, error.field, count=1), begin.sub(theirs, error.message))
    return error
