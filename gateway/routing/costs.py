"""The cost model: estimated seconds until the first token of a prompt, and what others lose by it, for every route.

Step 2 of a request's life. A cost is the sum of the parts in `CostParts`. Here the parts that depend on the request
join the columns of gateway/routing/worker_table.py: one for all decode workers, one for all prefill workers.
gateway/routing/cheapest.py pairs them."""

from collections.abc import Collection
from typing import NamedTuple

from gateway.routing.worker_table import Cached, Column, Group, Lacking
from gateway.workers.attached import AttachedWorker
from gateway.workers.worker_figures import (
    NO_ROOM_SECONDS,
    batch_seconds,
    mates_slowed,
    page_seconds,
    prompt_times,
    prompt_wait,
    room_seconds,
    slowed,
    tokens_per_second,
)


class Need(NamedTuple):
    tokens: int  # tokens that must be in the pages before decode can go on
    numerics: str = ""  # numerics class of the tokens that the client has; empty: any class
    adjusts: bool = False  # it adjusts logits, which not every worker can
    cached: Collection[Cached] = ()  # who has how much of the prompt


class CostParts(NamedTuple):
    """Seconds, as the trace of a request shows them."""

    queue: float = 0.0  # prompts that are computed before this one
    prefill: float = 0.0  # the tokens of this prompt that the worker's prefix cache lacks
    transfer: float = 0.0  # the pages that decode lacks, on their way; failed pushes
    interference: float = 0.0  # the batch at decode, and what a prompt that is computed beside it takes from it
    room: float = 0.0  # until decode has a place and pages

    @property
    def seconds(self) -> float:
        return self.queue + self.prefill + self.transfer + self.interference + self.room


def decode_seconds(group: Group, lacking: Lacking) -> Column:
    """The cost of each decode worker of a group without the prompt's computation."""
    if group.holds(group.pages(lacking.largest)):
        return group.standing.copy()
    base = group.standing + NO_ROOM_SECONDS * (group.free < group.pages(lacking.most))
    for tokens, rows in lacking.hits:
        base[rows] = group.standing[rows] + NO_ROOM_SECONDS * (group.free[rows] < group.pages(tokens))
    return base


def prompt_seconds(group: Group, lacking: Lacking) -> Column:
    """The time until each worker of a prefill group would have computed the prompt."""
    return _computed(group.queue, group.token, lacking)


def beside_seconds(group: Group, lacking: Lacking) -> Column:
    """The same at decode, where it takes the prompt from prefill."""
    return _computed(group.beside_queue, group.beside_token, lacking)


def own_seconds(group: Group, lacking: Lacking) -> Column:
    """The same at decode, where it has to."""
    return _computed(group.queue, group.token, lacking)


def _computed(queue: Column, token: Column, lacking: Lacking) -> Column:
    wait = token * max(1, lacking.most)
    wait += queue
    for tokens, rows in lacking.hits:
        wait[rows] = queue[rows] + max(1, tokens) * token[rows]
    return wait


def parts_of(
    decode: AttachedWorker,
    prefill: AttachedWorker | None,
    *,
    lacking: int,  # tokens of the prompt that decode lacks
    computed: int,  # tokens of it that prefill computes, or decode itself; 0: at most a page, which counts as nothing
    beside: bool = False,  # decode takes the prompt from prefill
    failed_seconds: float = 0.0,
) -> CostParts:
    """The cost of one route, part by part."""
    pages, batch = decode.pages(lacking), batch_seconds(decode)
    room = room_seconds(decode) + (NO_ROOM_SECONDS if pages > decode.load.free_pages else 0.0)
    if not computed:
        return CostParts(interference=batch, room=room)
    computer = prefill or decode
    queue, compute = prompt_wait(computer), computed / tokens_per_second(computer)
    if prefill is not None:
        compute *= prompt_times(prefill)
        transfer = prefill.pages(lacking) * page_seconds(prefill)
        return CostParts(queue, compute, transfer + failed_seconds, batch + mates_slowed(prefill) * compute, room)
    return CostParts(queue, compute, 0.0, batch + (slowed(decode) * compute if beside else 0.0), room)
