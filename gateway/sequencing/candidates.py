"""Which workers a request can have next, and whether it can ever have any: questions of the sequencer that change only
what a request remembers of refusals and failed pushes.

Step 2 of a request's life. gateway/routing/router.py compares the workers; here stands what the request brings
along."""

from gateway.routing.costs import Need
from gateway.routing.registry import Workers
from gateway.routing.router import Local, Route, route
from gateway.sequencing.reasons import all_refuse_for_ever
from gateway.sequencing.requests import GatewayRequest
from gateway.workers.attached import AttachedWorker
from gateway.workers.pairs import fits
from mesh.errors import BatonError, ClassUnavailable, PoolTooSmall, Unavailable
from mesh.messages.jobs import FullKind, Tier


def choose(
    request: GatewayRequest, workers: Workers, local: Local, *, decode_lost: bool, preferred: frozenset[int]
) -> Route | None:
    """The route of the next attempt, or None. `decode_lost`: keep the prefill worker, as it may hold the pages.
    `preferred`: workers that the request's routing key prefers."""
    chosen = _try(request, workers, local, decode_lost, preferred)
    if chosen is None and request.failed:
        request.failed.clear()  # every usable pair has failed: try them again
        chosen = _try(request, workers, local, decode_lost, preferred)
    return chosen


def _try(
    request: GatewayRequest, workers: Workers, local: Local, decode_lost: bool, preferred: frozenset[int]
) -> Route | None:
    choice = request.choice
    table = workers.table(choice.model)  # the tokens of another model mean nothing to its workers
    refused = request.refused.keys() | without_adapter(request, workers)
    cached = table.leading(choice.prompt, choice.cache_salt, choice.hashes)
    tokens, adjusts = len(choice.prompt) + request.next_position, choice.sampling.reads_logits
    for numerics in (request.numerics, "") if choice.allow_class_change else (request.numerics,):
        chosen = route(
            Need(tokens, numerics, adjusts, cached),
            table,
            local=local,
            keep=request.decode,
            last=None if decode_lost else request.prefill,
            first=request.prefill if decode_lost else None,
            refused=refused,
            failed=request.failed,
            preferred=preferred,
        )
        if chosen is not None:
            return chosen
    return None


def without_adapter(request: GatewayRequest, workers: Workers) -> set[int]:
    """Incarnations of the workers that lack the request's adapter."""
    digest = request.choice.digest
    if not digest:
        return set()
    mine = workers.of(request.choice.model)
    return request.lacks_adapter | {each.incarnation for each in mine if digest not in each.contents}


def adapter_missing(request: GatewayRequest, workers: Workers, local: Local) -> Unavailable | None:
    """The error of a request whose adapter no worker has any more that could serve it."""
    choice, mine, lacking = request.choice, workers.of(request.choice.model), without_adapter(request, workers)
    if choice.adapter is None:
        return None
    every = (Tier.PREFILL,) if local is Local.NEVER else tuple(Tier)
    needed = (every,) if choice.examination is not None else ((Tier.DECODE,), every)  # one worker of each needs it
    for tiers in needed:
        serving = [each for tier in tiers for each in mine.tier(tier)]
        if serving and all(each.incarnation in lacking for each in serving):
            break
    else:
        return None
    what = f"no worker has the adapter {choice.adapter.name!r} any more as it was when the request came"
    if request.lacks_adapter:
        return Unavailable(f"{what}: it was unloaded, or its folder has changed; load it again")
    return Unavailable(f"{what}: it was unloaded or replaced; send the request again")


def refuse(request: GatewayRequest, worker: AttachedWorker, kind: FullKind) -> None:
    """The worker has no room for the request, now or ever."""
    request.refused[worker.incarnation] = kind
    request.free_pages[worker.incarnation] = worker.load.free_pages


def forgive(request: GatewayRequest, worker: AttachedWorker) -> None:
    """The worker reports room. If that is more than it had since it refused the request for now, it is asked again; a
    report of the same room is the echo of the refusal."""
    if request.refused.get(worker.incarnation) is FullKind.NOW:
        fewest = request.free_pages[worker.incarnation]
        request.free_pages[worker.incarnation] = min(fewest, worker.load.free_pages)
        if worker.load.free_pages > fewest:
            del request.refused[worker.incarnation]


def hopeless(request: GatewayRequest, workers: Workers, local: Local, *, settled: bool) -> BatonError | None:
    """Why no worker will ever take the request; None: it may wait for room, or for a worker. `settled`: every worker
    that runs has had the time to attach."""
    choice, mine = request.choice, workers.of(request.choice.model)
    if settled and (missing := adapter_missing(request, workers, local)):
        return missing
    if settled and not mine.returns(choice.model, request.numerics) and (error := class_missing(request, workers)):
        return error
    return _too_large(request, *_of_its_class(request, mine), local)


def never_fits(request: GatewayRequest, workers: Workers, local: Local) -> PoolTooSmall | None:
    """The error of a request that has waited long enough, if every worker that could have served it meanwhile refuses
    it for ever. One that got its partner in this time could have taken it."""
    decodes, prefills = _of_its_class(request, workers.of(request.choice.model))
    if local is Local.NEVER:
        decodes, prefills = (
            [decode for decode in decodes if any(fits(prefill, decode) for prefill in prefills)],
            [prefill for prefill in prefills if any(fits(prefill, decode) for decode in decodes)],
        )
    return _too_large(request, decodes, prefills, local)


def _of_its_class(request: GatewayRequest, mine: Workers) -> tuple[list[AttachedWorker], list[AttachedWorker]]:
    """The decode and the prefill workers that may go on with the tokens that the client has."""
    any_class = request.choice.allow_class_change or not request.numerics
    decodes, prefills = (
        [worker for worker in mine.tier(tier) if any_class or worker.numerics == request.numerics]
        for tier in (Tier.DECODE, Tier.PREFILL)
    )
    return decodes, prefills


def _too_large(
    request: GatewayRequest, decodes: list[AttachedWorker], prefills: list[AttachedWorker], local: Local
) -> PoolTooSmall | None:
    choice, so_far = request.choice, request.next_position
    if all_refuse_for_ever(request, decodes):
        needed = len(choice.prompt) + choice.sampling.max_tokens
        what = f"prompt and {choice.max_tokens_field} need {needed} tokens; no decode worker's pool holds so many"
        return PoolTooSmall(choice.max_tokens_field, what)
    if local is Local.NEVER and all_refuse_for_ever(request, prefills):
        has = f"and its answer so far have {len(choice.prompt) + so_far}" if so_far else f"has {len(choice.prompt)}"
        what = f"the prompt {has} tokens; no prefill worker's pool holds so many"
        return PoolTooSmall(choice.max_tokens_field if so_far else choice.prompt_field, what)
    return None


def class_missing(request: GatewayRequest, workers: Workers) -> ClassUnavailable | None:
    """The error of a request whose class no decode worker has now, though decode workers are there."""
    choice = request.choice
    classes = sorted({decode.numerics for decode in workers.of(choice.model).tier(Tier.DECODE)})
    if choice.allow_class_change or choice.examination is not None:
        return None
    if not request.numerics or not classes or request.numerics in classes:
        return None
    began = f"the answer began in class {request.numerics}; the decode workers left are of {', '.join(classes)}"
    facts = {"wanted": request.numerics, "attached": ", ".join(classes)}
    return ClassUnavailable(f"{began}. Start a worker of that class, or set allow_class_change", details=facts)
