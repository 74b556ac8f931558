"""Validation of a client's request: one valid ChoiceRequest per choice, or an error that names the field.

Step 1 of a request's life. Both front doors end here, so both refuse the same values in the same words. Errors spell a
field as the client's front door does; defaults are filled in here and nowhere else."""

from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

from gateway.core.interface import ChoiceRequest, Core, ModelFacts
from gateway.prompts.assets import Assets
from gateway.prompts.lengths import validate_prompt_length
from gateway.validation.adjustments import leaves_none
from gateway.validation.beams import validate_beams
from gateway.validation.client_request import ClientRequest
from gateway.validation.fields import Fields
from gateway.validation.listed import with_listed_logprobs
from gateway.validation.logits import validate_logits
from gateway.validation.ranges import RANGES, SIXTY_FOUR_BITS, Range
from gateway.validation.thinking import with_reasoning
from mesh.config.door_config import DoorConfig
from mesh.errors import ContextTooLong, InvalidRequest, PoolTooSmall, Unavailable, UnknownModel
from mesh.messages.jobs import Sampling
from mesh.messages.orders import Examination

Number = TypeVar("Number", int, float)
MAX_CHOICES = 128
MAX_AFFINITY_CHARACTERS = 256
GREEDY_BELOW = 1e-5  # a lower temperature is served as 0: the largest logit always wins, and dividing by it overflows
MAX_STOP_CHARACTERS = 1024
MAX_STOP_IDS = 4096


@dataclass(frozen=True, slots=True)
class CompleteChoice:
    """A choice that the client brought along complete; nothing runs for it."""

    index: int
    emitted: tuple[int, ...]
    stop_id: int | None  # None: it reached max_tokens
    min_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ValidRequest:
    request: ClientRequest
    seed: int
    choices: tuple[ChoiceRequest, ...]  # choices to run, ordered by index
    complete: tuple[CompleteChoice, ...]
    eos_ids: frozenset[int]  # stop ids that are the model's own
    min_tokens: int = 0  # tokens that each choice has at least: no stop string ends it earlier
    scoring: ChoiceRequest | None = None  # computes the prompt's logprobs before the choices run; None: not wanted


def validate_model(core: Core, name: str | None) -> str:
    """The name of a served model; without a name, the first name of the only served model."""
    served = core.models()
    if not name:
        if len({core.root(each) for each in served}) > 1:
            what = f"model is missing, and several models are served: name one of {', '.join(map(repr, served))}"
            raise InvalidRequest("model", what)
        return served[0]
    if name not in served:
        raise UnknownModel(name, served)
    return name


def check_adapter(facts: ModelFacts) -> None:
    """Raise Unavailable where the name is one of an adapter that no worker has loaded yet."""
    if facts.adapter is not None and not facts.adapter.digest:
        what = f"adapter {facts.adapter.name!r} is not loaded yet: no attached worker has it"
        raise Unavailable(f"{what}; try again later")


def validate(request: ClientRequest, core: Core, assets: Assets, random: Random) -> ValidRequest:
    fields = Fields(request.field_names)
    facts = core.facts(validate_model(core, request.model))
    assert assets.name == facts.root, "these assets are of another model"
    check_adapter(facts)
    request.trace.root = facts.root
    context = facts.context(assets.context_tokens)
    prompt_field = fields.name("prompt")
    if not request.prompt:
        raise InvalidRequest(prompt_field, f"{prompt_field} is empty; it needs at least one token")
    fields.token_ids("prompt", request.prompt, assets.vocabulary)
    validate_prompt_length(prompt_field, len(request.prompt), core.limits, context, answer=request.max_tokens != 0)
    _validate_stops(request, fields, assets, core.limits)
    max_tokens = _max_tokens(request, fields, context, facts.largest_pool_tokens)
    most = min(MAX_CHOICES, core.limits.choices)
    counts = {"n": Range(1, most), "best_of": Range(request.n or 1, most)}
    fields.within({**RANGES, **counts, "min_tokens": Range(0, max_tokens)}, request)
    request = with_reasoning(request, fields, assets)
    request = with_listed_logprobs(request, fields, core.limits, assets.vocabulary, max_tokens=max_tokens)
    eos = () if request.ignore_eos else assets.eos_ids
    sampling = _sampling(request, fields, assets, random, max_tokens=max_tokens, eos=eos)
    validate_logits(request, fields, facts, assets.vocabulary)
    if request.beams is not None:
        validate_beams(request, request.beams, fields, len(sampling["stop_ids"]))
        sampling |= {"temperature": 0.0}
    own_eos = frozenset(eos) - set(request.stop_token_ids)
    valid = _per_choice(request, fields, facts, assets, sampling, own_eos)
    tokens = len(request.prompt) + sum(map(len, request.emitted.values()))
    request.trace.admission.adds(prompt_tokens=tokens, choices=len(valid.choices), max_tokens=max_tokens)
    return valid


def _validate_stops(request: ClientRequest, fields: Fields, assets: Assets, limits: DoorConfig) -> None:
    stop, ids = request.stop, request.stop_token_ids
    if len(stop) > limits.stop_strings:
        raise fields.invalid("stop", f"has {len(stop)} strings; at most {limits.stop_strings} are allowed")
    if len(ids) > MAX_STOP_IDS:
        raise fields.invalid("stop_token_ids", f"has {len(ids)} ids; at most {MAX_STOP_IDS} are allowed")
    if any(not string or len(string) > MAX_STOP_CHARACTERS for string in stop):
        raise fields.invalid("stop", f"holds a string that is empty or longer than {MAX_STOP_CHARACTERS} characters")
    fields.token_ids("stop_token_ids", ids, assets.vocabulary)


def _max_tokens(request: ClientRequest, fields: Fields, context: int, pool: int) -> int:
    """The client's max_tokens, or what context and the largest decode pool (0: unknown) leave for the answer."""
    prompt = len(request.prompt)
    prompt_field = fields.name("prompt")
    name = fields.name("max_tokens")
    if request.max_tokens == 0:
        return 0
    room = (min(context, pool) if pool else context) - prompt
    if room < 1:
        raise PoolTooSmall(
            prompt_field, f"{prompt_field} has {prompt} tokens and leaves no room in the largest decode pool of {pool}"
        )
    if request.max_tokens is None:
        return room
    max_tokens = request.max_tokens
    if prompt + max_tokens > context:
        raise ContextTooLong(
            prompt_field,
            f"this model's maximum context length is {context} tokens; this request needs {prompt + max_tokens}: "
            f"{prompt} in {prompt_field}, {max_tokens} in {name}; shorten {prompt_field} or lower {name}",
        )
    if max_tokens > room:
        what = f"{prompt_field} and {name} need {prompt + max_tokens} tokens; the largest decode pool holds {pool}"
        raise PoolTooSmall(name, what)
    return max_tokens


def _sampling(
    request: ClientRequest,
    fields: Fields,
    assets: Assets,
    random: Random,
    *,
    max_tokens: int,
    eos: tuple[int, ...],
) -> dict[str, Any]:
    """Arguments of Sampling that all choices share. Without a seed, one is drawn."""
    defaults = assets.defaults
    _validate_grammar(request, fields, eos)
    seed = random.getrandbits(64) if request.seed is None else request.seed
    top_k = defaults.top_k if request.top_k is None else 0 if request.top_k == -1 else request.top_k
    temperature = _first(request.temperature, defaults.temperature)
    min_tokens = _first(request.min_tokens, min(defaults.min_new_tokens, max_tokens))
    stop_ids = tuple(dict.fromkeys((*request.stop_token_ids, *eos)))
    if request.adjustments is not None and leaves_none(request.adjustments, stop_ids if min_tokens else ()):
        what = "leaves no token: bad_words, min_tokens or the model's suppress_tokens exclude all of them"
        raise fields.invalid("allowed_token_ids", what)
    return {
        "temperature": temperature if temperature >= GREEDY_BELOW else 0.0,
        "top_k": top_k,
        "top_p": _first(request.top_p, defaults.top_p),
        "min_p": _first(request.min_p, defaults.min_p),
        "seed": seed & SIXTY_FOUR_BITS,
        "max_tokens": max_tokens,
        "min_tokens": min_tokens,
        "stop_ids": stop_ids,
        "grammar": request.grammar,
        "top_logprobs": request.top_logprobs,
        "logprob_ids": request.logprob_ids,
        "adjustments": request.adjustments,
    }


def _first(given: Number | None, default: Number) -> Number:
    return default if given is None else given


def _least_tokens(request: ClientRequest, sampling: dict[str, Any]) -> int:
    """How many tokens an answer has at its end, at least."""
    if request.reading.use.names:  # a tool call may end it
        return 1
    may_end = sampling["stop_ids"] or request.stop or request.grammar
    return max(1, sampling["min_tokens"]) if may_end else int(sampling["max_tokens"])


def _validate_grammar(request: ClientRequest, fields: Fields, eos: tuple[int, ...]) -> None:
    """An answer with a grammar ends with the model's own end of sequence, where the grammar allows the end."""
    name = fields.name("grammar")
    if not request.grammar:
        return
    if request.ignore_eos:
        raise fields.invalid("ignore_eos", f"cannot be combined with {name}: the answer ends where the grammar ends")
    if request.min_tokens:
        raise fields.invalid("min_tokens", f"cannot be combined with {name}: the answer ends where the grammar ends")
    if request.adjustments is not None and request.adjustments.allowed:
        what = f"cannot be combined with {name}, which decides what comes: leave one of them out"
        raise fields.invalid("allowed_token_ids", what)
    if not eos:
        raise fields.invalid("grammar", "cannot be followed: this model has no end-of-sequence token")


def _per_choice(
    request: ClientRequest,
    fields: Fields,
    facts: ModelFacts,
    assets: Assets,
    sampling: dict[str, Any],
    eos: frozenset[int],
) -> ValidRequest:
    count = _first(request.best_of, _first(request.n, 1))
    if request.best_of is not None and request.emitted:
        raise fields.invalid("best_of", "has no meaning for an answer that is continued: name n alone")
    priority = request.trace.admission.priority(request.priority, fields.name("priority"))
    if any(index >= count for index in request.emitted):
        raise fields.invalid("emitted", f"names choice {max(request.emitted)}; the choices are 0 to {count - 1}")
    if request.emitted and request.seed is None and sampling["temperature"] > 0:
        raise fields.invalid("seed", "is needed to continue a sampled answer: send the seed of its Started event")
    fields.salt(request.salt)
    if len(request.affinity) > MAX_AFFINITY_CHARACTERS:
        raise fields.invalid("affinity", f"is longer than {MAX_AFFINITY_CHARACTERS} characters")
    salt = request.trace.admission.salt(request.salt)
    choices: list[ChoiceRequest] = []
    complete: list[CompleteChoice] = []
    hashes: dict[tuple[str, int], list[bytes]] = {}
    for index in range(count):
        emitted = request.emitted.get(index, ())
        fields.token_ids("emitted", emitted, assets.vocabulary)
        stopped = bool(emitted) and emitted[-1] in sampling["stop_ids"] and len(emitted) > sampling["min_tokens"]
        if stopped or len(emitted) >= sampling["max_tokens"]:
            complete.append(CompleteChoice(index, emitted, emitted[-1] if stopped else None, sampling["min_tokens"]))
            continue
        choices.append(
            ChoiceRequest(
                request_id=request.request_id,
                model=facts.root,
                adapter=facts.adapter,
                prompt=request.prompt,
                emitted=emitted,
                sampling=Sampling(choice=index, **sampling),
                deadline_seconds=request.deadline_seconds,
                allow_class_change=request.allow_class_change,
                numerics=request.numerics_of.get(index, request.numerics),
                trace=request.trace,
                salt=salt,
                affinity=request.affinity,
                priority=priority,
                least_tokens=_least_tokens(request, sampling),
                choices=count,
                beside_tokens=request.beside_tokens,
                prompt_field=fields.name("prompt"),
                max_tokens_field=fields.name("max_tokens"),
                grammar_field=fields.name("grammar"),
                hashes=hashes,
            )
        )
    scoring = _scoring(request, fields, facts, sampling, salt, priority)
    return ValidRequest(
        request, sampling["seed"], tuple(choices), tuple(complete), eos, sampling["min_tokens"], scoring
    )


def _scoring(
    request: ClientRequest, fields: Fields, facts: ModelFacts, sampling: dict[str, Any], salt: bytes, priority: int
) -> ChoiceRequest | None:
    """The examination of the prompt whose logprobs are wanted; None: they are not."""
    if request.prompt_logprobs is None:
        return None
    return ChoiceRequest(
        request_id=request.request_id,
        model=facts.root,
        adapter=facts.adapter,
        prompt=request.prompt,
        emitted=(),
        sampling=Sampling(**sampling),
        deadline_seconds=request.deadline_seconds,
        allow_class_change=request.allow_class_change,
        numerics=request.numerics,
        trace=request.trace,
        salt=salt,
        priority=priority,
        beside_tokens=request.beside_tokens,
        examination=Examination(request.prompt_logprobs),
        prompt_field=fields.name("prompt"),
        max_tokens_field=fields.name("max_tokens"),
    )
