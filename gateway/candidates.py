"""Which workers a request can have next, and whether it can ever have any: questions of the sequencer that change only
what a request remembers of refusals and failed pushes.

Step 2 of a request's life. gateway/router.py compares the workers; here stands what the request brings along."""

from gateway.attached import AttachedWorker
from gateway.costs import Need
from gateway.lacking import all_refuse_for_ever
from gateway.requests import GatewayRequest
from gateway.router import Local, Route, route
from gateway.workers import Workers
from mesh.errors import BatonError, ClassUnavailable, PoolTooSmall
from mesh.jobs import FullKind, Tier


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
    cached = table.leading(choice.prompt, choice.salt, choice.hashes)
    tokens, adjusts = len(choice.prompt) + request.next_position, choice.sampling.adjustments is not None
    for numerics in (request.numerics, "") if choice.allow_class_change else (request.numerics,):
        chosen = route(
            Need(tokens, numerics, adjusts, cached),
            table,
            local=local,
            keep=request.decode,
            last=None if decode_lost else request.prefill,
            first=request.prefill if decode_lost else None,
            refused=request.refused,
            failed=request.failed,
            preferred=preferred,
        )
        if chosen is not None:
            return chosen
    return None


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
    if settled and not mine.returns(choice.model, request.numerics) and (error := class_missing(request, workers)):
        return error
    if all_refuse_for_ever(request, mine.tier(Tier.DECODE)):
        needed = len(choice.prompt) + choice.sampling.max_tokens
        what = f"prompt and {choice.max_tokens_field} need {needed} tokens; no decode worker's pool holds so many"
        return PoolTooSmall(choice.max_tokens_field, what)
    if local is Local.NEVER and all_refuse_for_ever(request, mine.tier(Tier.PREFILL)):
        what = f"the prompt has {len(choice.prompt)} tokens; no prefill worker's pool holds so many"
        return PoolTooSmall(choice.prompt_field, what)
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
