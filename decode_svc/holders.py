"""Who holds pages at a decode worker, for its ledger (engine/ledger.py)."""

from collections.abc import Iterable, Iterator, Mapping

from decode_svc.flights import Flight
from decode_svc.requests import DecodeRequest
from engine.ledger import Holder


def holders(
    requests: Mapping[int, DecodeRequest], flights: Iterable[Flight], more: Iterable[Holder]
) -> Iterator[Holder]:
    """Every request with the pages that it refers to and those of its landing, and every step with those that wait for
    its end. `more`: the prompts that are examined."""
    for request in requests.values():
        if request.pages:
            yield Holder(f"request {request.key}, {request.phase.value}", request.pages)
        if request.landing is not None:
            yield Holder(f"the landing of request {request.key}", request.landing.pages, landing=True)
    for flight in flights:
        if flight.doomed:
            yield Holder(f"step {flight.plan.step}", flight.doomed)
    yield from more
