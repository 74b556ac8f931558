"""Ended requests are counted once, by the way they took; the last ones are kept without their content."""

from dataclasses import fields

from gateway.sequencing.ended_requests import KEPT, EndedRequest
from mesh.errors import Cancelled
from mesh.messages.jobs import End
from tests.sim.loop import virtual
from tests.unit.gateway.fake_mesh import SequencerMesh, mesh


def answer(mesh: SequencerMesh, prompt: int = 10) -> None:
    request = mesh.accept(prompt=prompt)
    mesh.token(mesh.serving(request)[1], request.ticket, 0)
    mesh.token(mesh.serving(request)[1], request.ticket, 1, End.STOP)


@virtual
async def test_an_answered_request_is_remote_and_its_tokens_count() -> None:
    made = mesh()
    answer(made)
    tally = made.sequencer.tally
    assert (tally.paths["remote"], tally.statuses["ok"], tally.tokens) == (1, 1, 2)
    (ended,) = tally.last
    assert (ended.number, ended.path, ended.status, ended.prompt_tokens, ended.tokens) == (1, "remote", "ok", 10, 2)
    assert ended.exposed_seconds == 0.0 and ended.attempts == 1


@virtual
async def test_a_request_whose_worker_died_is_resumed() -> None:
    made = mesh()
    request = made.accept()
    made.token(made.serving(request)[1], request.ticket, 0)
    made.end_session(made.serving(request)[1])
    made.token(made.serving(request)[1], request.ticket, 1, End.STOP)
    assert made.sequencer.tally.paths == {"resumed": 1}


@virtual
async def test_a_cancelled_request_counts_as_such_and_only_once() -> None:
    made = mesh()
    request = made.accept()
    made.sequencer.end(request, Cancelled("enough"))
    made.sequencer.end(request, Cancelled("enough"))
    assert made.sequencer.tally.statuses == {"cancelled": 1}


@virtual
async def test_only_the_last_requests_are_kept_and_numbers_go_on() -> None:
    made = mesh()
    for _ in range(KEPT + 5):
        answer(made)
    assert len(made.sequencer.tally.last) == KEPT
    assert made.sequencer.tally.last[-1].number == KEPT + 5


def test_a_record_has_no_field_for_content() -> None:
    assert {field.type for field in fields(EndedRequest)} <= {int, str, float, int | None, float | None}
