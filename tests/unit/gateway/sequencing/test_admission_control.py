"""The gateway refuses a request whose wait, estimated from the reports of workers, would be too long."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from gateway.core.interface import ChoiceRequest
from gateway.routing.router import Local
from gateway.sequencing.reasons import given_back
from gateway.sequencing.requests import StartLimit
from gateway.workers.worker_figures import GUESSED_TOKENS_PER_SECOND
from mesh.errors import DeadlineExceeded, Overloaded, Unavailable
from mesh.messages.hello_pairs import PageReach
from mesh.messages.jobs import Reason, Sampling
from mesh.messages.page_shape import opaque_pages
from mesh.messages.reports import Load, Lost
from tests.sim.loop import virtual
from tests.unit.gateway.fake_mesh import SequencerMesh, control, mesh


def report(made: SequencerMesh, *names: str, **load: Any) -> None:
    for name in names:
        made.workers[name].report(Load(free_pages=64, total_pages=64, **load))


def choice(**more: Any) -> ChoiceRequest:
    return ChoiceRequest("r", "m", (1, 2, 3), (), Sampling(max_tokens=5), **more)


def test_the_wait_is_the_shortest_queue_of_prompts_at_its_measured_speed() -> None:
    made = mesh()
    admission = control(made)
    report(made, "p1", queued_tokens=4000, tokens_per_second=500.0)
    report(made, "p2", queued_tokens=9000, tokens_per_second=3000.0)
    assert admission.wait_seconds("m") == 3.0
    made.workers["p2"].count(3000)
    assert admission.wait_seconds("m") == 4.0, "what is on its way counts"
    report(made, "p1", queued_tokens=2000)
    assert admission.wait_seconds("m") == 2000 / GUESSED_TOKENS_PER_SECOND, "until it has measured itself"


def test_or_the_time_until_a_place_at_decode_is_free() -> None:
    made = mesh()
    admission = control(made)
    report(made, "d1", opened=11, free_places=0, place_seconds=0.5)
    report(made, "d2", opened=8, free_places=2, place_seconds=0.5)
    assert admission.wait_seconds("m") == 3.5
    report(made, "d2", opened=8, free_places=9, place_seconds=0.5)
    assert admission.wait_seconds("m") == 0.0
    report(made, "d2", opened=90, place_seconds=0.5)
    assert admission.wait_seconds("m") > 5 and admission.wait_seconds("m", examined=True) == 0.0, "it needs no place"


def test_where_decode_computes_prompts_its_own_queue_counts() -> None:
    made = mesh()
    report(made, "p1", "p2", queued_tokens=9000, tokens_per_second=100.0)
    report(made, "d1", "d2", queued_tokens=300, tokens_per_second=100.0)
    assert control(made, local=Local.ALWAYS).wait_seconds("m") == 3.0
    assert control(made).wait_seconds("m") == 90.0


def test_a_prefill_worker_that_fits_no_decode_worker_shortens_no_wait() -> None:
    made = mesh()
    for name, content in (("p1", "one"), ("p2", "other"), ("d1", "other"), ("d2", "other")):
        worker = made.workers[name]
        reach = PageReach("host", 1000, opaque_pages((2, 2048), content=content), ("shm",))
        worker.hello = replace(worker.hello, pages=reach)
    report(made, "p1", tokens_per_second=100.0)
    report(made, "p2", queued_tokens=900, tokens_per_second=100.0)
    assert control(made).wait_seconds("m") == 9.0


def test_a_longer_wait_than_the_limit_is_refused_with_a_time_to_come_back() -> None:
    made = mesh()
    admission = control(made)
    report(made, "p1", "p2", queued_tokens=1100, tokens_per_second=100.0)
    with pytest.raises(Overloaded, match=r"11\.0 s.*10 s \(queue_seconds\)") as refused:
        admission.check("m", 0.0, draining=False)
    assert refused.value.http_status == 429 and refused.value.details == {"wait_seconds": "11.0"}
    first = refused.value.retry_after_seconds
    assert first is not None and first > 1
    admission.check(None, 0.0, draining=False)
    control(made, queue_seconds=0.0).check("m", 0.0, draining=False)
    for _ in range(9):
        with pytest.raises(Overloaded) as refused:
            admission.accept(choice(), 0.0, draining=False)
    assert (refused.value.retry_after_seconds or 0) > 2 * first, "the more are refused, the later each shall come"
    assert admission.refusals == {"queue": 10, "deadline": 0, "max_waiting": 0, "no_worker": 0, "draining": 0}


@virtual
async def test_the_first_choice_of_a_request_decides_for_all() -> None:
    made = mesh()
    admission = control(made)
    one = choice()
    admission.accept(one, 0.0, draining=False)
    made.sequencer.accept(one)
    report(made, "p1", "p2", queued_tokens=9000, tokens_per_second=100.0)
    admission.accept(one, 0.0, draining=False)
    with pytest.raises(Overloaded):
        admission.accept(choice(), 0.0, draining=False)
    with pytest.raises(Unavailable, match="shuts down"):
        admission.accept(one, 0.0, draining=True)


def test_a_deadline_before_its_turn_is_refused() -> None:
    made = mesh()
    admission = control(made)
    report(made, "p1", "p2", queued_tokens=300, tokens_per_second=100.0)
    admission.accept(choice(deadline_seconds=3.5), 0.0, draining=False)
    with pytest.raises(Overloaded, match="deadline is in 2 s"):
        admission.accept(choice(deadline_seconds=2.0), 0.0, draining=False)
    assert admission.refusals["deadline"] == 1


def test_an_older_worker_that_reports_no_places_refuses_nobody() -> None:
    made = mesh()
    report(made, "d1", "d2", waiting=50, running=64)
    assert control(made).wait_seconds("m") == 0.0


def test_a_request_may_wait_twice_the_limit_and_longer_with_a_low_priority() -> None:
    made = mesh()
    admission = control(made)

    def limit(one: ChoiceRequest) -> float | None:
        start = admission.start_limit(one, 0.0)
        assert start is None or start.of_queue
        return start.seconds if start else None

    assert limit(choice()) == 20.0 and limit(choice(priority=5)) == 25.0 and limit(choice(priority=-5)) == 20.0
    assert control(made, queue_seconds=0.0).start_limit(choice(), 0.0) is None
    assert limit(ChoiceRequest("r", "m", (1,), (2,), Sampling(max_tokens=5))) is None, "a continued answer waits"
    of_many = choice()
    for _ in range(2):
        of_many.trace.choice(0.0, (1, 2, 3), of_many.sampling)
    assert limit(of_many) is None, "the second choice of a request waits for the first"


@virtual
async def test_a_late_request_ends_and_no_other_worker_tries_it() -> None:
    made = mesh()
    cases = (
        (None, StartLimit(3.0, of_queue=True), Overloaded),
        (9.0, StartLimit(20.0, of_queue=True), DeadlineExceeded),  # the worker saw that its prompt takes too long
        (180.0, StartLimit(3.0, of_queue=True), Overloaded),  # it waited as long as any may, its deadline is far
        (18.0, StartLimit(3.0, of_queue=False), DeadlineExceeded),  # its own tokens take most of its time
        (9.0, StartLimit(3.0, of_queue=False), Overloaded),
    )
    for deadline, start, error in cases:
        request = made.accept(deadline_seconds=deadline)
        request.start = start
        assert request.ticket is not None
        lost = Lost(request.ticket, Reason.LATE)
        await asyncio.sleep(4.0)
        assert isinstance(given_back(request, lost, request.accepted_seconds + 4.0), error)
        made.sequencer.on_lost(made.workers["p1"], lost)
        assert request.ended and isinstance(request.error, error)


@virtual
async def test_requests_that_waited_longer_than_estimated_make_later_estimates_longer() -> None:
    made = mesh()
    admission = control(made)
    report(made, "p1", "p2", queued_tokens=400, tokens_per_second=100.0)
    for _ in range(200):
        one = choice()
        admission.accept(one, 0.0, draining=False)
        record = one.trace.choice(0.0, one.prompt, one.sampling)
        record.first_token_seconds = 8.0  # twice the estimate
    assert 7.5 < admission.wait_seconds("m") <= 8.0
    report(made, "p1", "p2", queued_tokens=600, tokens_per_second=100.0)
    with pytest.raises(Overloaded):
        admission.check("m", 0.0, draining=False)
    report(made, "p1", "p2", tokens_per_second=100.0)
    assert admission.wait_seconds("m") == 0.0, "an idle mesh refuses nobody"
