"""Lists the holders of a decode worker's pages, so that its ledger (engine/pool/ledger.py) can add them up."""

from collections.abc import Iterable, Iterator, Mapping

from decode_svc.flights import Flight
from decode_svc.handoff.landings import Landings
from decode_svc.request.requests import DecodePhase, DecodeRequest
from engine.examining.examinations import Examinations
from engine.pool.horizon import held
from engine.pool.ledger import Holder
from engine.pool.pages import PageState


def holders(
    requests: Mapping[int, DecodeRequest],
    flights: Iterable[Flight],
    landings: Landings,
    examinations: Examinations,
) -> Iterator[Holder]:
    """Every request with the pages that it refers to and those of its landing, every step with those that wait for its
    end, the writers whose pages are quarantined, and the prompts that are examined."""
    for request in requests.values():
        attempt, landing = request.ticket.attempt, request.landing
        if pages := held(request.pages):
            since = request.running_seconds if request.phase is DecodePhase.RUNNING else None
            since = landing.began_seconds if landing is not None else since
            yield Holder(request.phase.value, pages, request=request.key, attempt=attempt, since_seconds=since)
        if landing is not None:
            yield Holder(
                "landing",
                landing.writable,
                PageState.LANDING,
                request.key,
                attempt,
                landing.writer,
                since_seconds=landing.began_seconds,
            )
    for flight in flights:
        if flight.doomed:
            yield Holder(f"step {flight.plan.step}", flight.doomed)
    yield from landings.quarantine.holders()
    yield from examinations.holders()
