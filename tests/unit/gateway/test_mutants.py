"""Each rule of the gateway prevents a wrong answer, which its mutant lets through."""

from collections.abc import Callable

import pytest

from mesh.messages.jobs import Reason, Ticket
from mesh.messages.reports import Lost
from tests.mutants.gateway import MUTANTS
from tests.sim.loop import run_virtual
from tests.unit.gateway.fake_mesh import mesh, served


def attempt() -> bool:
    """A token of attempt 1 comes after attempt 2 has begun."""
    m = mesh()
    request = m.accept()
    decode, old = m.serving(request)[1], request.ticket
    assert isinstance(old, Ticket)
    m.sequencer.on_lost(m.workers[decode], Lost(old, Reason.LANDING_LOST))
    m.token(decode, old, 0)
    return not request.shown


def position() -> bool:
    """Decode and prefill both send position 0, and position 2 overtakes position 1."""
    m, request, prefill, decode = served()
    for name, at in ((prefill, 0), (decode, 0), (decode, 2), (decode, 1)):
        m.token(name, request.ticket, at)
    return list(request.shown) == [100, 101]


SCENARIOS: dict[str, Callable[[], bool]] = {"attempt": attempt, "position": position}


def right(name: str) -> bool:
    async def main() -> bool:
        return SCENARIOS[name]()

    return run_virtual(main())


def test_every_mutant_has_a_scenario() -> None:
    assert set(SCENARIOS) == set(MUTANTS)


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_rule_keeps_the_answer_right(name: str) -> None:
    assert right(name)


@pytest.mark.parametrize("name", SCENARIOS)
def test_without_the_rule_the_answer_is_wrong(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch.setattr)
    assert not right(name)
