"""Which workers a request can have next, and whether it can ever have any: questions of the sequencer that change only
what a request remembers of failed pushes.

Step 2 of a request's life. gateway/router.py compares the workers; here stands what the request brings along."""

from gateway.lacking import all_refuse_for_ever
from gateway.requests import GatewayRequest
from gateway.router import Local, Need, Route, route
from gateway.workers import Workers
from mesh.errors import BatonError, ClassUnavailable, PoolTooSmall
from mesh.messages import Tier


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
    workers = workers.of(request.choice.model)  # the tokens of another model mean nothing to these
    for numerics in (request.numerics, "") if request.choice.allow_class_change else (request.numerics,):
        chosen = route(
            Need(len(request.choice.prompt) + request.next_position, numerics),
            decodes=workers.able(Tier.DECODE, request.choice.sampling),
            prefills=workers.able(Tier.PREFILL, request.choice.sampling),
            cached=request.cached_tokens,
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


def hopeless(request: GatewayRequest, workers: Workers, local: Local) -> BatonError | None:
    """Why no worker that is attached will ever take the request; None: it may wait for room, or for a worker."""
    choice, workers = request.choice, workers.of(request.choice.model)
    classes = sorted({decode.numerics for decode in workers.tier(Tier.DECODE)})
    if request.numerics and classes and request.numerics not in classes:
        began = f"the answer began in class {request.numerics}; the decode workers left are of {', '.join(classes)}"
        facts = {"wanted": request.numerics, "attached": ", ".join(classes)}
        return ClassUnavailable(f"{began}. Start a worker of that class, or set allow_class_change", details=facts)
    if all_refuse_for_ever(request, workers.tier(Tier.DECODE)):
        needed = len(choice.prompt) + choice.sampling.max_tokens
        what = f"prompt and {choice.max_tokens_field} need {needed} tokens; no decode worker's pool holds so many"
        return PoolTooSmall(choice.max_tokens_field, what)
    if local is Local.NEVER and all_refuse_for_ever(request, workers.tier(Tier.PREFILL)):
        what = f"the prompt has {len(choice.prompt)} tokens; no prefill worker's pool holds so many"
        return PoolTooSmall(choice.prompt_field, what)
    return None
