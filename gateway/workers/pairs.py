"""Whether a prefill worker's pages fit a decode worker, judged from their Hellos.

They do if both are of one numerics class and fingerprint and have pages that a transport of both can carry, converted
where they differ (mesh/messages/hello_pairs.py). The router pairs only such workers; gateway/routing/unpaired.py names
those that fit nobody."""

from collections.abc import Collection, Hashable, Iterable
from dataclasses import replace
from functools import lru_cache

from gateway.workers.attached import AttachedWorker
from mesh.messages.hello_pairs import SHARES_MEMORY, PageReach, choose

SHARED = frozenset(SHARES_MEMORY)
HostBound = frozenset[frozenset[str]]  # sets of transports


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


def hosts_matter(workers: Iterable[AttachedWorker]) -> HostBound:
    """The sets of transports whose workers' hosts decide who fits them: with the workers of some other set, or with one
    another, they have only ways in common that need one host."""
    found = {frozenset(reach.transports) for worker in workers if (reach := worker.hello.pages) is not None}
    return frozenset(one for one in found if any(one & other and one & other <= SHARED for other in found))


def kind_of(worker: AttachedWorker, *, hosts: HostBound) -> Hashable:
    """Equal for workers that fit the same others. `hosts`: of all workers that it is compared with, see above."""
    reach = worker.hello.pages
    if reach is not None and frozenset(reach.transports) not in hosts:
        reach = replace(reach, host="", uid=0)
    return worker.hello.numerics, worker.hello.fingerprint, reach


def kinds(workers: Iterable[AttachedWorker], *, hosts: HostBound) -> list[AttachedWorker]:
    """One worker of each kind: a thousand workers are of a few kinds."""
    found = dict[Hashable, AttachedWorker]()
    for worker in workers:
        found.setdefault(kind_of(worker, hosts=hosts), worker)
    return list(found.values())


def any_pair(prefills: Collection[AttachedWorker], decodes: Collection[AttachedWorker]) -> bool:
    hosts = hosts_matter([*prefills, *decodes])
    others = kinds(decodes, hosts=hosts)
    return any(fits(prefill, decode) for prefill in kinds(prefills, hosts=hosts) for decode in others)
