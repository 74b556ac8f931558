"""Checks the reports of an attached worker before a gateway computes with them.

A gateway shows the numbers of all workers together: in metrics, traces, alarms and on pages for people. One number that
is none, of one worker, would cost all of them. A problem names the field; the gateway expels that worker."""

import math
from collections.abc import Iterable, Iterator

from mesh.messages.adapters import Adapters
from mesh.messages.field_checks import text_problem
from mesh.messages.hello_checks import adapters_problem, load_problem
from mesh.messages.message import Message
from mesh.messages.reports import ClockReading, Embedded, Hello, Load, Measures, Phase, Phases, Prefilled, Scored

MOST_SECONDS = 1e9  # latest time of a worker's clock, and longest duration: traces have 64 bits of nanoseconds
MOST_MEASURES = 10_000  # names of one worker, and histograms
NUMBER_BYTES = 4  # size of a packed number


def report_problem(message: Message) -> str:
    """Why an attached worker may not send this; empty: it may."""
    match message:
        case Hello():
            return "hello: comes once, at the beginning"
        case Load():
            return load_problem(message)
        case Adapters():
            return adapters_problem(message.items)
        case Measures():
            return _measures(message)
        case ClockReading():
            return _seconds("clock_reading", (message.seconds,))
        case Prefilled():
            return _seconds("prefilled", (message.queued_seconds, message.computed_seconds))
        case Phases():
            return _seconds("phases", _times(message))
        case Scored():
            return _scored(message)
        case Embedded():
            return _whole("embedded.values", message.values) or ("" if message.values else "embedded.values: is empty")
        case _:
            return ""


def _measures(measures: Measures) -> str:
    if max(len(measures.values), len(measures.distributions)) > MOST_MEASURES:
        return f"measures: has more than {MOST_MEASURES} names"
    names = [*(each.name for each in measures.values), *(each.name for each in measures.distributions)]
    return (
        next((why for name in names if (why := text_problem("measures.name", name))), "")
        or _finite("measures.values", (each.value for each in measures.values))
        or _finite("measures.distributions.sum", (each.sum for each in measures.distributions))
    )


def _scored(scored: Scored) -> str:
    """Entries have a logprob and a rank each, and equally many likeliest tokens."""
    count = scored.count
    if why := _whole("scored.logprobs", scored.logprobs):
        return why
    if len(scored.ranks) != len(scored.logprobs):
        return f"scored.ranks: are {len(scored.ranks)} bytes for {count} entries"
    if len(scored.top_ids) != len(scored.top_logprobs) or len(scored.top_ids) % (NUMBER_BYTES * max(1, count)):
        return f"scored.top_ids: are {len(scored.top_ids)} bytes for {count} entries"
    return ""


def _whole(name: str, numbers: bytes) -> str:
    return "" if len(numbers) % NUMBER_BYTES == 0 else f"{name}: {len(numbers)} bytes are no numbers"


def _times(phases: Phases) -> Iterator[float]:
    for leg in phases.legs:
        yield from (leg.start_seconds, leg.end_seconds)
    for phase in (*phases.steps, *(phase for leg in phases.legs for phase in leg.phases)):
        yield from _of_phase(phase)


def _of_phase(phase: Phase) -> Iterator[float]:
    yield from (phase.start_seconds, phase.end_seconds)
    yield from (event.seconds for event in phase.events)


def _seconds(name: str, values: Iterable[float]) -> str:
    odd = next((value for value in values if not 0 <= value <= MOST_SECONDS), None)  # NaN is not either
    return "" if odd is None else f"{name}: {odd} is no time in seconds"


def _finite(name: str, values: Iterable[float]) -> str:
    odd = next((value for value in values if not math.isfinite(value)), None)
    return "" if odd is None else f"{name}: {odd} is no number"
