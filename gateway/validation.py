"""From what a client asked to what the core gets: one valid ChoiceRequest per choice, or an error that names the field.

Both front doors end here, so both refuse the same things in the same words. Fields are named as their door spells them;
defaults are filled in here and nowhere else."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from gateway.assets import Assets
from gateway.core import ChoiceRequest, Core
from mesh.errors import ContextTooLong, InvalidRequest, PoolTooSmall, UnknownModel
from mesh.messages import Sampling

CHOICES = 128
TOP_LOGPROBS = 20
STOP_STRINGS = 16
STOP_CHARACTERS = 1024
SALT_CHARACTERS = 128
SIXTY_FOUR_BITS = 2**64 - 1


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A request as any front door understands it; None: the client did not say."""

    request_id: str
    prompt: tuple[int, ...]  # tokenized
    prompt_field: str = "prompt"
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
    tools: frozenset[str] = frozenset()  # whose calls are read from the text
    one_call: bool = False  # the answer ends with its first call
    emitted: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  # by choice
    numerics: str = ""  # the class that `emitted` came from
    numerics_of: Mapping[int, str] = field(default_factory=dict)  # by choice, where it is another one
    allow_class_change: bool = False
    salt: str = ""
    priority: int = 0
    deadline_seconds: float | None = None
    traceparent: str = ""
    names: Mapping[str, str] = field(default_factory=dict)  # ours -> as this door spells it, where they differ


@dataclass(frozen=True, slots=True)
class Complete:
    """A choice that the client brought along finished."""

    index: int
    emitted: tuple[int, ...]
    stop_id: int | None  # None: it reached max_tokens


@dataclass(frozen=True, slots=True)
class ValidRequest:
    asked: ClientRequest
    seed: int
    specs: tuple[ChoiceRequest, ...]  # ordered by choice
    complete: tuple[Complete, ...]  # nothing left to do for these
    eos_ids: frozenset[int]  # stop ids that are the model's own


def check_model(core: Core, asked: str | None) -> str:
    """The served name; an empty one means the only model."""
    served = core.models()
    if not asked and len(served) == 1:
        return served[0]
    if asked not in served:
        raise UnknownModel(asked or "", served)
    return asked


def accept(asked: ClientRequest, core: Core, assets: Assets, random: Random) -> ValidRequest:
    check = _Check(asked)
    model = check_model(core, asked.model)
    context = min(assets.context_tokens, core.context_tokens or assets.context_tokens)
    _check_prompt(check, assets, context)
    pool = core.largest_pool_tokens
    room = (min(context, pool) if pool else context) - len(asked.prompt)
    if room < 1:
        raise PoolTooSmall(
            asked.prompt_field,
            f"the prompt of {len(asked.prompt)} tokens leaves no room in the largest decode pool of {pool}",
        )
    max_tokens = room if asked.max_tokens is None else check.between("max_tokens", asked.max_tokens, 1)
    min_tokens = check.between("min_tokens", asked.min_tokens or 0, 0, max_tokens)
    if len(asked.prompt) + max_tokens > context:
        raise ContextTooLong(
            asked.prompt_field,
            f"{len(asked.prompt)} tokens of prompt and {check.name('max_tokens')} = {max_tokens} exceed the model's "
            f"context of {context} tokens; shorten the prompt or lower {check.name('max_tokens')}",
        )
    if max_tokens > room:
        name = check.name("max_tokens")
        raise PoolTooSmall(
            name, f"prompt and {name} need {len(asked.prompt) + max_tokens} tokens; the largest pool has {pool}"
        )
    _check_stops(check, assets)
    choices = check.between("n", 1 if asked.n is None else asked.n, 1, CHOICES)
    eos = () if asked.ignore_eos else assets.eos_ids
    top, usual = asked.top_logprobs, assets.defaults
    seed = (
        random.getrandbits(64) if asked.seed is None else check.between("seed", asked.seed, -(2**63), SIXTY_FOUR_BITS)
    )
    sampling = {
        "temperature": check.number("temperature", asked.temperature, usual.temperature, low=0.0, high=100.0),
        "top_k": 0
        if asked.top_k == -1
        else check.between("top_k", usual.top_k if asked.top_k is None else asked.top_k, 0, 2**31 - 1),
        "top_p": check.number("top_p", asked.top_p, usual.top_p, low=0.0, high=1.0, above=True),
        "min_p": check.number("min_p", asked.min_p, usual.min_p, low=0.0, high=1.0),
        "seed": seed & SIXTY_FOUR_BITS,
        "max_tokens": max_tokens,
        "min_tokens": min_tokens,
        "stop_ids": tuple(dict.fromkeys((*asked.stop_token_ids, *eos))),
        "top_logprobs": None if top is None else check.between("top_logprobs", top, 0, TOP_LOGPROBS),
    }
    return _per_choice(check, model, assets, sampling, choices, frozenset(eos) - set(asked.stop_token_ids))


def _per_choice(
    check: "_Check", model: str, assets: Assets, sampling: dict[str, Any], choices: int, eos: frozenset[int]
) -> ValidRequest:
    asked = check.asked
    if any(index >= choices for index in asked.emitted):
        raise check.wrong("emitted", f"names choice {max(asked.emitted)}, but there are {choices}")
    if asked.emitted and asked.seed is None and sampling["temperature"] > 0:
        raise check.wrong("seed", "is needed to continue a sampled answer: the seed that Started told")
    if len(asked.salt) > SALT_CHARACTERS:
        raise check.wrong("salt", f"has {len(asked.salt)} characters, at most {SALT_CHARACTERS}")
    salt = hashlib.blake2b(asked.salt.encode(), digest_size=16).digest() if asked.salt else b""
    specs: list[ChoiceRequest] = []
    complete: list[Complete] = []
    for index in range(choices):
        emitted = asked.emitted.get(index, ())
        check.ids("emitted", emitted, assets.vocabulary)
        ended = bool(emitted) and emitted[-1] in sampling["stop_ids"] and len(emitted) > sampling["min_tokens"]
        if ended or len(emitted) >= sampling["max_tokens"]:
            complete.append(Complete(index, emitted, emitted[-1] if ended else None))
            continue
        specs.append(
            ChoiceRequest(
                request_id=asked.request_id,
                model=model,
                prompt=asked.prompt,
                emitted=emitted,
                sampling=Sampling(choice=index, **sampling),
                deadline_seconds=asked.deadline_seconds,
                allow_class_change=asked.allow_class_change,
                numerics=asked.numerics_of.get(index, asked.numerics),
                traceparent=asked.traceparent,
                salt=salt,
                priority=check.between("priority", asked.priority, -(2**31), 2**31 - 1),
            )
        )
    return ValidRequest(asked, sampling["seed"], tuple(specs), tuple(complete), eos)


def check_length(name: str, tokens: int, context: int) -> None:
    if tokens >= context:
        what = f"{name} has {tokens} tokens; the model's context is {context}, the answer included: shorten it"
        raise ContextTooLong(name, what)


def _check_prompt(check: "_Check", assets: Assets, context: int) -> None:
    prompt, name = check.asked.prompt, check.asked.prompt_field
    if not prompt:
        raise InvalidRequest(name, f"{name} is empty; it needs at least one token")
    check.ids(name, prompt, assets.vocabulary)
    check_length(name, len(prompt), context)


def _check_stops(check: "_Check", assets: Assets) -> None:
    stop = check.asked.stop
    if len(stop) > STOP_STRINGS:
        raise check.wrong("stop", f"has {len(stop)} strings, at most {STOP_STRINGS}")
    if any(not string or len(string) > STOP_CHARACTERS for string in stop):
        raise check.wrong("stop", f"holds a string that is empty or longer than {STOP_CHARACTERS} characters")
    check.ids("stop_token_ids", check.asked.stop_token_ids, assets.vocabulary)


class _Check:
    """Range checks that speak of fields as the client does."""

    def __init__(self, asked: ClientRequest) -> None:
        self.asked = asked

    def name(self, field: str) -> str:
        return self.asked.names.get(field, field)

    def wrong(self, field: str, what: str) -> InvalidRequest:
        return InvalidRequest(self.name(field), f"{self.name(field)} {what}")

    def between(self, field: str, value: int, low: int, high: int | None = None) -> int:
        if value < low or (high is not None and value > high):
            limits = f"at least {low}" if high is None else f"between {low} and {high}"
            raise self.wrong(field, f"must be {limits}, not {value}")
        return value

    def number(
        self, field: str, value: float | None, default: float, *, low: float, high: float, above: bool = False
    ) -> float:
        """`above`: `low` itself is excluded."""
        if value is None:
            return default
        if not (math.isfinite(value) and low <= value <= high) or (above and value == low):
            raise self.wrong(field, f"must be {'above' if above else 'from'} {low:g} to {high:g}, not {value}")
        return value

    def ids(self, field: str, ids: tuple[int, ...], vocabulary: int) -> None:
        if ids and not 0 <= min(ids) <= max(ids) < vocabulary:
            odd = next(token for token in ids if not 0 <= token < vocabulary)
            raise self.wrong(field, f"holds token id {odd}; the vocabulary has ids 0 to {vocabulary - 1}")
