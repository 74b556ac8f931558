"""The router adds up these figures, which it takes from each worker's last report. All but one are in seconds.

Step 2 of a request's life. A figure holds for any request; what depends on the request is in
gateway/routing/costs.py."""

from collections.abc import Iterable
from math import inf
from typing import NamedTuple

from gateway.workers.attached import AttachedWorker
from mesh.messages.jobs import Tier

GUESSED_TOKENS_PER_SECOND = 2000.0  # until a worker has measured itself
GUESSED_PAGE_SECONDS = 0.0002  # a page on its way, until a worker has measured it
JOIN_BATCH_SECONDS = 0.002  # cost of one more request in a decode batch
NO_ROOM_SECONDS = 5.0  # cost of a decode worker without enough free pages, or with requests that wait for some
SECOND_BATCH_SECONDS = 1.0  # cost of a batch on cores that have a larger one: each step would read the weights again
SHARED_CORES_TIMES = 1.5  # a prompt at prefill takes this multiple of its time where decode computes on its cores
SPARE_DECODE = 0.25  # a prompt costs this much more at an idle decode worker: batches come that it would slow down
SLOWED_REQUEST = 0.2  # ... and this much more for each request that decodes there
HELD_REQUEST = 10.0  # ... and at a prefill worker on its cores, whose chunks hold each step up as long as they like


class WorkerFigures(NamedTuple):
    """One worker's; infinite means that it is not to be chosen for this."""

    standing: float = 0.0  # decode: batch and room that a request finds here
    queue: float = 0.0  # until the prompts that it has are computed; infinite: it takes no requests
    token: float = 0.0  # for one token of a prompt
    page: float = 0.0  # prefill: for one page on its way to decode
    free: float = 0.0  # decode: pages that can be handed out, no time
    beside_queue: float = inf  # decode: as `queue`, for a prompt that it takes from prefill
    beside_token: float = inf  # decode: as `token`, for such a prompt, with what the batch loses by it
    place: float = 0.0  # decode: until a place in the batch is left
    ahead: float = 0.0  # as `queue`, without the prompts that a new request overtakes; infinite: it takes no requests


def figures(worker: AttachedWorker) -> WorkerFigures:
    token = 1 / tokens_per_second(worker)
    queue, ahead = (prompt_wait(worker), ahead_wait(worker)) if worker.takes_requests else (inf, inf)
    if worker.tier is Tier.PREFILL:
        token = token * prompt_times(worker) * (1 + mates_slowed(worker))
        return WorkerFigures(0.0, queue, token, page_seconds(worker), ahead=ahead)
    standing = batch_seconds(worker) + room_seconds(worker) if worker.takes_requests else inf
    free, place = float(worker.load.free_pages), place_wait(worker) if worker.takes_requests else inf
    if not worker.load.local_tokens_per_second:
        return WorkerFigures(standing, queue, token, free=free, place=place, ahead=ahead)
    return WorkerFigures(standing, queue, token, 0.0, free, queue, token * (1 + slowed(worker)), place, ahead)


def tokens_per_second(worker: AttachedWorker) -> float:
    """The worker's speed with prompts: at decode beside its batch, where it has measured that. Decode workers that
    share their cores have that of the largest batch: an idle one is no faster beside it."""
    same = (worker, *worker.core_mates) if worker.tier is Tier.DECODE else (worker,)
    load = max(same, key=batch_size).load
    return load.local_tokens_per_second or load.tokens_per_second or GUESSED_TOKENS_PER_SECOND


def together_per_second(workers: Iterable[AttachedWorker]) -> float:
    """The speed with prompts of all these workers; those of a host that share its cores compute in turn."""
    alone, shared = 0.0, dict[str, float]()
    for worker in workers:
        if worker.core_mates and worker.hello.pages is not None:
            host = worker.hello.pages.host
            shared[host] = max(shared.get(host, 0.0), tokens_per_second(worker))
        else:
            alone += tokens_per_second(worker)
    return alone + sum(shared.values()) or inf


def page_seconds(prefill: AttachedWorker) -> float:
    return prefill.load.page_seconds or GUESSED_PAGE_SECONDS


def batch_seconds(decode: AttachedWorker) -> float:
    """The cost of one more request in the batch, for all of it. On cores that another batch has already, the request
    should join that one: a larger one with a place left, of a worker that takes requests."""
    mine, second = batch_size(decode), 0.0
    for mate in decode.core_mates:
        if batch_size(mate) > mine and mate.takes_requests and not room_seconds(mate):
            second = SECOND_BATCH_SECONDS
    return mine * JOIN_BATCH_SECONDS + second


def batch_size(decode: AttachedWorker) -> int:
    return decode.load.running + decode.load.waiting + decode.unreported_requests


def room_seconds(decode: AttachedWorker) -> float:
    """Until there is a place in the batch; a guess where requests wait and it has not measured how long. A step that
    takes long may well take as long again, or for ever."""
    if decode.load.waiting and not decode.load.place_seconds:
        return NO_ROOM_SECONDS + decode.step_seconds
    return place_wait(decode) + decode.step_seconds


def place_wait(decode: AttachedWorker) -> float:
    """Time until a place in the worker's batch is left for one more request."""
    load = decode.load
    return max(0, load.opened + decode.unreported_requests - load.free_places + 1) * load.place_seconds


def slowed(decode: AttachedWorker) -> float:
    """The loss of all requests that decode on these cores by a second of a prompt beside them, as it counts for a
    route."""
    return SPARE_DECODE + SLOWED_REQUEST * sum(each.load.running for each in (decode, *decode.core_mates))


def prompt_times(prefill: AttachedWorker) -> float:
    """Time of a prompt at prefill, as a multiple of what prefill's own speed says."""
    return SHARED_CORES_TIMES if prefill.core_mates else 1.0


def mates_slowed(prefill: AttachedWorker) -> float:
    """The loss by a second of a prompt at prefill, where decode workers compute on all cores of its host: each request
    there waits for it, also one whose prompt decode computes itself."""
    return sum(SPARE_DECODE + HELD_REQUEST * (batch_size(mate) + mate.load.opened) for mate in prefill.core_mates)


def prompt_wait(worker: AttachedWorker) -> float:
    """Time until the worker has computed the prompts that it has and those that are on their way to it, and its core
    mates theirs: the cores are the same."""
    return _own_wait(worker) + sum(map(_own_wait, worker.core_mates))


def _own_wait(worker: AttachedWorker) -> float:
    step = worker.step_seconds if worker.tier is Tier.PREFILL else 0.0  # decode's step counts in `room_seconds`
    return (worker.load.queued_tokens + worker.unreported_tokens) / tokens_per_second(worker) + step


def ahead_wait(worker: AttachedWorker) -> float:
    """The same for a new request, which overtakes choices that are not the first of theirs
    (gateway/sequencing/lines.py)."""
    return _own_ahead(worker) + sum(map(_own_ahead, worker.core_mates))


def _own_ahead(worker: AttachedWorker) -> float:
    tokens = worker.load.queued_tokens + worker.unreported_tokens - worker.behind_tokens
    return max(0, tokens) / tokens_per_second(worker)
