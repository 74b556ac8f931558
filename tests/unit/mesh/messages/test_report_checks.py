"""A gateway checks the reports of an attached worker before it computes with them; the problem names the field."""

from math import inf, nan

import pytest

from mesh.messages.jobs import Ticket
from mesh.messages.message import Message
from mesh.messages.report_checks import MOST_MEASURES, report_problem
from mesh.messages.reports import (
    ClockReading,
    Distribution,
    Embedded,
    Leg,
    Load,
    Measure,
    Measures,
    Phase,
    PhaseEvent,
    Phases,
    Prefilled,
    Scored,
)

TICKET = Ticket(1, 1, bytes(16))
PHASE = Phase("compute", 1.0, 2.0, events=(PhaseEvent("chunk", 1.5),))
FOUR = bytes(4)
WRONG: list[tuple[Message, str]] = [
    (Measures((Measure("stuck", nan),), ()), "measures.values: nan"),
    (Measures((Measure("stuck", inf),), ()), "measures.values: inf"),
    (Measures((Measure("a\nb", 1.0),), ()), "measures.name"),
    (Measures((), (Distribution("step_tokens", (1,), nan),)), "measures.distributions.sum: nan"),
    (Measures((Measure("x", 0.0),) * (MOST_MEASURES + 1), ()), "measures: has more than"),
    (ClockReading(1, nan), "clock_reading: nan"),
    (ClockReading(1, 1e300), "clock_reading: 1e"),
    (Prefilled(TICKET, 0, -inf, 0.0), "prefilled: -inf"),
    (Phases((), (Phase("step", -1.0, 0.0),)), "phases: -1.0 is no time"),
    (Phases((), (Phase("step", 0.0, 2e9),)), "phases: 2000000000.0 is no time"),
    (Phases((), (Phase("step", 0.0, nan),)), "phases: nan"),
    (Phases((Leg(TICKET, nan, 1.0, ()),)), "phases: nan"),
    (Phases((Leg(TICKET, 0.0, 1.0, (Phase("x", 0.0, 1.0, events=(PhaseEvent("e", inf),)),)),)), "phases: inf"),
    (Scored(TICKET, 0, b"123", b"123", b"", b""), "scored.logprobs: 3 bytes"),
    (Scored(TICKET, 0, FOUR, b"", b"", b""), "scored.ranks: are 0 bytes for 1 entries"),
    (Scored(TICKET, 0, 2 * FOUR, 2 * FOUR, 3 * FOUR, 3 * FOUR), "scored.top_ids: are 12 bytes for 2 entries"),
    (Scored(TICKET, 0, FOUR, FOUR, FOUR, b""), "scored.top_ids"),
    (Embedded(TICKET, b""), "embedded.values: is empty"),
    (Embedded(TICKET, b"12345"), "embedded.values: 5 bytes"),
    (Load(waiting=-1), "load.waiting"),
]


@pytest.mark.parametrize(("message", "why"), WRONG)
def test_a_report_that_no_worker_sends_is_named_by_its_field(message: Message, why: str) -> None:
    assert report_problem(message).startswith(why)


@pytest.mark.parametrize(
    "message",
    [
        Measures((Measure("stuck", 2.0),), (Distribution("step_tokens", (1, 2), 3.5),)),
        ClockReading(1, 5.5),
        Prefilled(TICKET, 3, 0.5, 0.25),
        Phases((Leg(TICKET, 1.0, 2.0, (PHASE,)),), (PHASE,)),
        Scored(TICKET, 0, 2 * FOUR, 2 * FOUR, 4 * FOUR, 4 * FOUR),
        Scored(TICKET, 0, b"", b"", b"", b""),
        Embedded(TICKET, FOUR),
        Load(waiting=1),
    ],
)
def test_a_sound_report_has_no_problem(message: Message) -> None:
    assert report_problem(message) == ""
