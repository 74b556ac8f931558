"""Says what keeps a request waiting, a missing worker or room at one, and makes the errors that end it: after too long
a wait, or because a worker reports that no other attempt can succeed."""

from collections.abc import Sequence

from gateway.routing.registry import Workers
from gateway.routing.router import Local
from gateway.routing.unpaired import mismatch
from gateway.sequencing.deadlines import OTHERS_SHARE
from gateway.sequencing.requests import GatewayRequest, StartLimit
from gateway.workers.attached import AttachedWorker
from mesh.errors import BatonError, DeadlineExceeded, Internal, InvalidRequest, Overloaded, Unavailable
from mesh.messages.jobs import FullKind, Reason, Tier
from mesh.messages.reports import Lost

NO_WORKER_RETRY_SECONDS = 5.0
DECODE_WORKER, PREFILL_WORKER, ROOM = "decode worker", "prefill worker", "room"
TURN = "turn"  # among the choices of its client's request, see gateway/sequencing/lines.py
FITTING = "prefill worker that fits a decode worker"  # /health says which workers do not fit, and why


def lacking(workers: Workers, local: Local) -> str:
    """The kind of worker that is missing for any request, else room at a worker."""
    if not workers.tier(Tier.DECODE):
        return DECODE_WORKER
    if local is Local.NEVER and not workers.tier(Tier.PREFILL):
        return PREFILL_WORKER
    return FITTING if mismatch(workers, local) else ROOM


def gave_up(what: str, seconds: float, retry: float = 1.0) -> Unavailable:
    """The error of a request that waited for this. `retry`: seconds after which a new try makes sense."""
    if what == ROOM:
        message = f"no worker had room for this request for {seconds:g} s; try again later"
        return Unavailable(message, retry_after_seconds=retry)
    waited = f"this request waited {seconds:g} s for one"
    return Unavailable(f"no {what} is attached, and {waited}: start one, or try again later")


def all_refuse_for_ever(request: GatewayRequest, workers: Sequence[AttachedWorker]) -> bool:
    """Does the request need more than the whole pool of each of these workers? False without workers."""
    return bool(workers) and all(request.refused.get(w.incarnation) is FullKind.EVER for w in workers)


def no_pair(why: str) -> Unavailable:
    """The error of a request that does not wait, because the tiers have not fitted each other for a while."""
    message = f"the workers of this gateway cannot serve together: {why}; start workers that fit"
    return Unavailable(message, retry_after_seconds=NO_WORKER_RETRY_SECONDS)


def no_worker(seconds: float, model: str | None = None) -> Unavailable:
    """The error of a request that does not wait, because no worker has been there for `seconds`. `model`: its model,
    if there are several."""
    which = f"no worker of model {model!r}" if model is not None else "no worker"
    message = f"{which} has been attached for {seconds:.0f} s: start one, or try again later"
    return Unavailable(message, retry_after_seconds=NO_WORKER_RETRY_SECONDS)


def given_back(request: GatewayRequest, lost: Lost, now: float) -> BatonError | None:
    """The error that ends a request which a worker has given back, where no other worker shall try; None: another one
    does."""
    if lost.reason is Reason.GRAMMAR:
        return InvalidRequest(request.choice.grammar_field, lost.detail)
    if lost.reason is Reason.FAILED:  # the job is not sound, or makes steps fail: it never goes to a second worker
        name = request.choice.request_id
        return Internal(f"request {name} cannot be computed: {lost.detail}; the logs of gateway and worker have more")
    if lost.reason is not Reason.LATE:
        return None
    waited, deadline = now - request.accepted_seconds, request.choice.deadline_seconds
    if deadline is not None and _too_long_itself(request.start, waited, deadline):
        return DeadlineExceeded("the deadline would pass before the first token: allow more time")
    what = f"this request waited {waited:.1f} s behind others and nothing of it was computed; try again later"
    return Overloaded(what, wait_seconds=waited, retry_after_seconds=waited)


def _too_long_itself(start: StartLimit | None, waited: float, deadline: float) -> bool:
    """Is the request's own length, not the wait for others, what its deadline leaves no time for?"""
    if start is None or waited < start.seconds:
        return True
    return not start.of_queue and waited < OTHERS_SHARE * deadline
