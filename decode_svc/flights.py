"""Flights: steps that the runner has and the loop has not read: one, or two if the next is launched ahead.

Step 7 of a request's life. Whatever happens to a request meanwhile, its pages stay taken until the loop has read the
last step that has rows of the request."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from decode_svc.request.requests import DecodeRequest
from engine.step.plan import Plan, Result


@dataclass(slots=True)
class Flight:
    plan: Plan
    result: "asyncio.Future[Result]"
    requests: dict[int, DecodeRequest]  # the requests that have rows in the step, by key
    doomed: list[int] = field(default_factory=list)  # pages to release when the step is over

    def failed(self, result: Result, alive: Mapping[int, DecodeRequest]) -> Iterator[tuple[DecodeRequest, str]]:
        """The requests that this step could not compute, each with the reason; those that have ended are left out."""
        for piece, _, fault in result.outcomes(self.plan) if result.faults else ():
            request = self.requests.get(piece.key)
            if fault and request is not None and alive.get(piece.key) is request:
                yield request, fault


class Flights:
    def __init__(self) -> None:
        self._flying: list[Flight] = []  # the first one was launched first

    def begin(self, plan: Plan, result: "asyncio.Future[Result]", requests: dict[int, DecodeRequest]) -> Flight:
        flight = Flight(plan, result, requests, [source for source, _ in plan.copies])
        self._flying.append(flight)
        return flight

    def __iter__(self) -> Iterator[Flight]:
        return iter(self._flying)

    def keep(self, request: DecodeRequest, pages: Iterable[int]) -> bool:
        """Keep the pages of an ending request until the last step with its rows is over. False: no step has any."""
        for flight in reversed(self._flying):
            if flight.requests.get(request.key) is request:
                flight.doomed.extend(pages)
                return True
        return False

    def end(self, flight: Flight) -> list[int]:
        """Forget a step whose result is read, and return the pages to release."""
        self._flying.remove(flight)
        return flight.doomed

    def abandon(self) -> None:
        for flight in self._flying:
            flight.result.cancel()
