"""Workers whose clocks are off: every time that they put into a message is shifted."""

from collections.abc import Mapping
from dataclasses import replace

from mesh.messages.message import Message
from mesh.messages.reports import ClockReading, Leg, Phase, Phases
from mesh.network.memory_network import MemoryNetwork


def skew(network: MemoryNetwork, seconds: Mapping[str, float]) -> None:
    """From now on these hosts' clocks differ by so much from the gateway's."""
    network.rewrite = lambda source, message: shifted(message, seconds.get(source, 0.0))


def shifted(message: Message, by: float) -> Message:
    if isinstance(message, ClockReading):
        return replace(message, seconds=message.seconds + by)
    if isinstance(message, Phases):
        legs, steps = tuple(_leg(leg, by) for leg in message.legs), tuple(_phase(step, by) for step in message.steps)
        return Phases(legs, steps)
    return message


def _leg(leg: Leg, by: float) -> Leg:
    start, end = leg.start_seconds + by, leg.end_seconds + by
    return Leg(leg.ticket, start, end, tuple(_phase(phase, by) for phase in leg.phases))


def _phase(phase: Phase, by: float) -> Phase:
    events = tuple(replace(event, seconds=event.seconds + by) for event in phase.events)
    start, end = phase.start_seconds + by, phase.end_seconds + by
    return replace(phase, start_seconds=start, end_seconds=end, events=events)
