"""Flights: steps that the runner has and that are not read yet, mostly one, two where the next is launched ahead.

Step 7 of a request's life. Whatever happens to a request meanwhile, the pages that a step names stay taken until its
result is there: they are given back behind the last step that has rows of the request."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from decode_svc.requests import DecodeRequest
from engine.plan import Plan, Result


@dataclass(slots=True)
class Flight:
    plan: Plan
    result: "asyncio.Future[Result]"
    requests: dict[int, DecodeRequest]  # those that have rows in it
    doomed: list[int] = field(default_factory=list)  # pages to release when it is over


class Flights:
    def __init__(self) -> None:
        self._flying: list[Flight] = []  # in the order of their launch

    def begin(self, plan: Plan, result: "asyncio.Future[Result]", requests: dict[int, DecodeRequest]) -> Flight:
        flight = Flight(plan, result, requests, [source for source, _ in plan.copies])
        self._flying.append(flight)
        return flight

    def keep(self, request: DecodeRequest, pages: Iterable[int]) -> bool:
        """The request ends. If a step that flies has rows of it, its pages are released behind that step."""
        for flight in reversed(self._flying):
            if flight.requests.get(request.key) is request:
                flight.doomed.extend(pages)
                return True
        return False

    def end(self, flight: Flight) -> list[int]:
        """The step was read; returns the pages to release."""
        self._flying.remove(flight)
        return flight.doomed

    def abandon(self) -> None:
        for flight in self._flying:
            flight.result.cancel()
