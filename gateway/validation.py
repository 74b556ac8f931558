"""Validation of a client's request: one valid ChoiceRequest per choice, or an error that names the field.

Step 1 of a request's life. Both front doors end here, so both refuse the same values in the same words. Errors spell a
field as the client's front door does; defaults are filled in here and nowhere else."""

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from gateway.core import ChoiceRequest, Core
from gateway.lengths import validate_prompt_length
from gateway.observability.record import RequestRecord, unrecorded
from gateway.text.assets import Assets
from mesh.door_config import DoorConfig
from mesh.errors import ContextTooLong, InvalidRequest, PoolTooSmall, UnknownModel
from mesh.messages import Sampling

MAX_CHOICES = 128
MAX_TOP_LOGPROBS = 20
MAX_STOP_CHARACTERS = 1024
MAX_STOP_IDS = 4096
MAX_SALT_CHARACTERS = 128
MAX_PRIORITY = 600
SIXTY_FOUR_BITS = 2**64 - 1
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A request as any front door understands it; None: the client left the field out."""

    request_id: str
    prompt: tuple[int, ...]  # token ids
    model: str | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop: bool = False
    skip_special: bool = True
    top_logprobs: int | None = None  # None: no logprobs
    tools: frozenset[str] = frozenset()  # names of the tools whose calls are read from the text
    one_call: bool = False  # the answer ends with its first tool call
    emitted: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  # tokens that the client has, by choice
    numerics: str = ""  # numerics class of `emitted`
    numerics_of: Mapping[int, str] = field(default_factory=dict)  # numerics class of choices where it differs
    allow_class_change: bool = False
    salt: str = ""
    priority: int = 0
    deadline_seconds: float | None = None
    trace: RequestRecord = field(default_factory=unrecorded, compare=False)
    field_names: Mapping[str, str] = field(default_factory=dict)  # spelling of the front door, where it differs


@dataclass(frozen=True, slots=True)
class CompleteChoice:
    """A choice that the client brought along complete; nothing runs for it."""

    index: int
    emitted: tuple[int, ...]
    stop_id: int | None  # None: it reached max_tokens


@dataclass(frozen=True, slots=True)
class ValidRequest:
    request: ClientRequest
    seed: int
    choices: tuple[ChoiceRequest, ...]  # choices to run, ordered by index
    complete: tuple[CompleteChoice, ...]
    eos_ids: frozenset[int]  # stop ids that are the model's own


def validate_request_id(request_id: str) -> str:
    if not is_request_id(request_id):
        what = "request_id must be 1 to 128 printable ASCII characters without spaces, and not . or .."
        raise InvalidRequest("request_id", what)
    return request_id


def is_request_id(text: str) -> bool:
    """Whether the name can stand alone in the path of a URL too: `.` and `..` cannot."""
    return _REQUEST_ID.fullmatch(text) is not None and text not in (".", "..")


def validate_model(core: Core, name: str | None) -> str:
    """The name of a served model; without a name, the only served model."""
    served = core.models()
    if not name and len(served) == 1:
        return served[0]
    if name not in served:
        raise UnknownModel(name or "", served)
    return name


def validate(request: ClientRequest, core: Core, assets: Assets, random: Random) -> ValidRequest:
    fields = _Fields(request)
    model = validate_model(core, request.model)
    context = min(assets.context_tokens, core.context_tokens or assets.context_tokens)
    prompt_field = fields.name("prompt")
    if not request.prompt:
        raise InvalidRequest(prompt_field, f"{prompt_field} is empty; it needs at least one token")
    fields.token_ids("prompt", request.prompt, assets.vocabulary)
    validate_prompt_length(prompt_field, len(request.prompt), core.limits, context)
    _validate_stops(fields, assets, core.limits)
    max_tokens = _max_tokens(fields, context, core.largest_pool_tokens)
    eos = () if request.ignore_eos else assets.eos_ids
    sampling = _sampling(fields, assets, random, max_tokens=max_tokens, eos=eos)
    return _per_choice(fields, model, assets, core.limits, sampling, frozenset(eos) - set(request.stop_token_ids))


def _validate_stops(fields: "_Fields", assets: Assets, limits: DoorConfig) -> None:
    stop, ids = fields.request.stop, fields.request.stop_token_ids
    if len(stop) > limits.stop_strings:
        raise fields.invalid("stop", f"has {len(stop)} strings; at most {limits.stop_strings} are allowed")
    if len(ids) > MAX_STOP_IDS:
        raise fields.invalid("stop_token_ids", f"has {len(ids)} ids; at most {MAX_STOP_IDS} are allowed")
    if any(not string or len(string) > MAX_STOP_CHARACTERS for string in stop):
        raise fields.invalid("stop", f"holds a string that is empty or longer than {MAX_STOP_CHARACTERS} characters")
    fields.token_ids("stop_token_ids", ids, assets.vocabulary)


def _max_tokens(fields: "_Fields", context: int, pool: int) -> int:
    """The client's max_tokens, or what context and the largest decode pool (0: unknown) leave for the answer."""
    prompt, prompt_field, name = len(fields.request.prompt), fields.name("prompt"), fields.name("max_tokens")
    room = (min(context, pool) if pool else context) - prompt
    if room < 1:
        raise PoolTooSmall(
            prompt_field, f"{prompt_field} has {prompt} tokens and leaves no room in the largest decode pool of {pool}"
        )
    if fields.request.max_tokens is None:
        return room
    max_tokens = fields.integer("max_tokens", fields.request.max_tokens, 1)
    if prompt + max_tokens > context:
        raise ContextTooLong(
            prompt_field,
            f"{prompt_field} of {prompt} tokens and {name} = {max_tokens} exceed the model's context of {context}; "
            f"shorten {prompt_field} or lower {name}",
        )
    if max_tokens > room:
        what = f"{prompt_field} and {name} need {prompt + max_tokens} tokens; the largest decode pool holds {pool}"
        raise PoolTooSmall(name, what)
    return max_tokens


def _sampling(
    fields: "_Fields", assets: Assets, random: Random, *, max_tokens: int, eos: tuple[int, ...]
) -> dict[str, Any]:
    """Arguments of Sampling that all choices share. Without a seed, one is drawn."""
    request, defaults, top = fields.request, assets.defaults, fields.request.top_logprobs
    seed = random.getrandbits(64) if request.seed is None else request.seed
    top_k = defaults.top_k if request.top_k is None else 0 if request.top_k == -1 else request.top_k
    return {
        "temperature": fields.number("temperature", request.temperature, defaults.temperature, low=0.0, high=100.0),
        "top_k": fields.integer("top_k", top_k, 0, 2**31 - 1),
        "top_p": fields.number("top_p", request.top_p, defaults.top_p, low=0.0, high=1.0, above=True),
        "min_p": fields.number("min_p", request.min_p, defaults.min_p, low=0.0, high=1.0),
        "seed": fields.integer("seed", seed, -(2**63), SIXTY_FOUR_BITS) & SIXTY_FOUR_BITS,
        "max_tokens": max_tokens,
        "min_tokens": fields.integer("min_tokens", request.min_tokens or 0, 0, max_tokens),
        "stop_ids": tuple(dict.fromkeys((*request.stop_token_ids, *eos))),
        "top_logprobs": None if top is None else fields.integer("top_logprobs", top, 0, MAX_TOP_LOGPROBS),
    }


def _per_choice(
    fields: "_Fields",
    model: str,
    assets: Assets,
    limits: DoorConfig,
    sampling: dict[str, Any],
    eos: frozenset[int],
) -> ValidRequest:
    request = fields.request
    count = fields.integer("n", 1 if request.n is None else request.n, 1, min(MAX_CHOICES, limits.choices))
    priority = fields.integer("priority", request.priority, -MAX_PRIORITY, MAX_PRIORITY)
    if any(index >= count for index in request.emitted):
        raise fields.invalid("emitted", f"names choice {max(request.emitted)}; the choices are 0 to {count - 1}")
    if request.emitted and request.seed is None and sampling["temperature"] > 0:
        raise fields.invalid("seed", "is needed to continue a sampled answer: send the seed of its Started event")
    if len(request.salt) > MAX_SALT_CHARACTERS:
        raise fields.invalid("salt", f"has {len(request.salt)} characters; at most {MAX_SALT_CHARACTERS} are allowed")
    salt = hashlib.blake2b(request.salt.encode(), digest_size=16).digest() if request.salt else b""
    choices: list[ChoiceRequest] = []
    complete: list[CompleteChoice] = []
    hashes: dict[tuple[str, int], list[bytes]] = {}
    for index in range(count):
        emitted = request.emitted.get(index, ())
        fields.token_ids("emitted", emitted, assets.vocabulary)
        stopped = bool(emitted) and emitted[-1] in sampling["stop_ids"] and len(emitted) > sampling["min_tokens"]
        if stopped or len(emitted) >= sampling["max_tokens"]:
            complete.append(CompleteChoice(index, emitted, emitted[-1] if stopped else None))
            continue
        choices.append(
            ChoiceRequest(
                request_id=request.request_id,
                model=model,
                prompt=request.prompt,
                emitted=emitted,
                sampling=Sampling(choice=index, **sampling),
                deadline_seconds=request.deadline_seconds,
                allow_class_change=request.allow_class_change,
                numerics=request.numerics_of.get(index, request.numerics),
                trace=request.trace,
                salt=salt,
                priority=priority,
                choices=count,
                prompt_field=fields.name("prompt"),
                max_tokens_field=fields.name("max_tokens"),
                hashes=hashes,
            )
        )
    return ValidRequest(request, sampling["seed"], tuple(choices), tuple(complete), eos)


class _Fields:
    """Range checks whose errors spell fields as the client's front door does."""

    def __init__(self, request: ClientRequest) -> None:
        self.request = request

    def name(self, field: str) -> str:
        return self.request.field_names.get(field, field)

    def invalid(self, field: str, what: str) -> InvalidRequest:
        return InvalidRequest(self.name(field), f"{self.name(field)} {what}")

    def integer(self, field: str, value: int, low: int, high: int | None = None) -> int:
        if value < low or (high is not None and value > high):
            limits = f"at least {low}" if high is None else f"from {low} to {high}"
            raise self.invalid(field, f"must be {limits}, not {value}")
        return value

    def number(
        self, field: str, value: float | None, default: float, *, low: float, high: float, above: bool = False
    ) -> float:
        """`above`: the value must be larger than `low`."""
        if value is None:
            return default
        if not (math.isfinite(value) and low <= value <= high) or (above and value == low):
            limits = f"above {low:g} and at most {high:g}" if above else f"from {low:g} to {high:g}"
            raise self.invalid(field, f"must be {limits}, not {value}")
        return value

    def token_ids(self, field: str, ids: tuple[int, ...], vocabulary: int) -> None:
        if ids and not 0 <= min(ids) <= max(ids) < vocabulary:
            unknown = next(token for token in ids if not 0 <= token < vocabulary)
            raise self.invalid(field, f"holds token id {unknown}; the vocabulary has ids 0 to {vocabulary - 1}")
