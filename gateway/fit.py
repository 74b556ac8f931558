"""Whether a prefill worker's pages fit a decode worker, judged from their Hellos.

They do if both are of one numerics class and fingerprint and have pages of one layout and a transport in common
(mesh/pairing.py). The router pairs only such workers; gateway/pairing.py names those that fit nobody."""

from collections.abc import Iterable
from functools import lru_cache

from gateway.workers import AttachedWorker
from mesh.pairing import PageReach, choose


@lru_cache(maxsize=4096)
def obstacle(prefill: PageReach | None, decode: PageReach | None) -> str:
    """Why no pages can travel from the one to the other; empty: they can, or a worker does not tell and decode judges
    when a session begins."""
    if prefill is None or decode is None:
        return ""
    choice = choose(prefill, decode)
    return "" if choice.transport else choice.why


def misfit(prefill: AttachedWorker, decode: AttachedWorker) -> str:
    """Why the one cannot compute prompts for the other; empty: it can."""
    if prefill.numerics != decode.numerics:
        return f"numerics classes differ: prefill has {prefill.numerics!r}, decode {decode.numerics!r}"
    return obstacle(prefill.hello.pages, decode.hello.pages)


def fits(prefill: AttachedWorker, decode: AttachedWorker) -> bool:
    return prefill.numerics == decode.numerics and not obstacle(prefill.hello.pages, decode.hello.pages)


def kinds(workers: Iterable[AttachedWorker]) -> list[AttachedWorker]:
    """One worker of each kind, which fit the same others: a thousand workers are of a few kinds."""
    found = dict[tuple[str, PageReach | None], AttachedWorker]()
    for worker in workers:
        found.setdefault((worker.numerics, worker.hello.pages), worker)
    return list(found.values())


def any_pair(prefills: Iterable[AttachedWorker], decodes: Iterable[AttachedWorker]) -> bool:
    others = kinds(decodes)
    return any(fits(prefill, decode) for prefill in kinds(prefills) for decode in others)
