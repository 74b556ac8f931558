"""The choices of one client request take turns as one: workers get a few of them at a time."""

from typing import Any

from gateway.core.interface import ChoiceRequest
from gateway.sequencing.requests import BEHIND_STEPS, GatewayRequest, RequestPhase
from gateway.tracing.record import RequestRecord, unrecorded
from mesh.errors import Unavailable
from mesh.messages.jobs import End, Sampling
from mesh.messages.orders import Open
from mesh.messages.reports import Load
from tests.sim.loop import virtual
from tests.unit.gateway.fake_mesh import SequencerMesh, control, mesh

SPEED = 1000.0  # prompt tokens per second of each prefill worker: both compute 200 in the window


def fast_mesh(**load: Any) -> SequencerMesh:
    made = mesh()
    for name, worker in made.workers.items():
        more = load if name[0] == "d" else {"tokens_per_second": SPEED}
        worker.report(Load(free_pages=64, total_pages=64, **more))
    return made


def accept(made: SequencerMesh, trace: RequestRecord, index: int, tokens: int = 150, **more: Any) -> GatewayRequest:
    prompt = more.pop("prompt", tuple(range(index, index + tokens)))
    sampling = Sampling(max_tokens=5, choice=index)
    return made.sequencer.accept(ChoiceRequest("r", "m", prompt, (), sampling, trace=trace, **more))


def batch(made: SequencerMesh, count: int, tokens: int = 150) -> list[GatewayRequest]:
    trace = unrecorded()
    return [accept(made, trace, index, tokens) for index in range(count)]


def at_work(requests: list[GatewayRequest]) -> list[int]:
    return [index for index, each in enumerate(requests) if each.phase is RequestPhase.OPEN]


def first_token(made: SequencerMesh, request: GatewayRequest, end: End = End.NONE) -> None:
    made.token(made.serving(request)[1], request.ticket, 0, end)


@virtual
async def test_a_request_with_many_long_prompts_has_two_of_them_at_the_workers() -> None:
    made = fast_mesh()
    many = batch(made, 6)
    assert at_work(many) == [0, 1] and made.sequencer.tally.waiting == 2
    assert all(each.phase is RequestPhase.WAITING for each in many[2:])
    first_token(made, many[1])
    assert at_work(many) == [0, 1, 2], "the next one follows when a prompt is computed"
    made.sequencer.end(many[0], Unavailable("over"))
    assert at_work(many) == [1, 2, 3]
    one = batch(made, 1)
    assert at_work(one) == [0], "another client's request does not wait for them"


@virtual
async def test_short_prompts_and_choices_of_one_prompt_go_together() -> None:
    made = fast_mesh()
    assert at_work(batch(made, 20, tokens=10)) == list(range(20)), "they compute for less than the window"
    trace, prompt = unrecorded(), tuple(range(150))
    same = [accept(made, trace, index, prompt=prompt) for index in range(4)]
    assert at_work(same) == [0, 1], "150 + 32 tokens fit into the window, 150 + 64 do not"
    first_token(made, same[0])
    assert at_work(same) == [0, 1, 2, 3]


@virtual
async def test_choices_behind_the_first_count_as_younger_than_they_are() -> None:
    made = fast_mesh()
    many = batch(made, 2)
    alone = batch(made, 1)[0]
    orders = [each for name in ("d1", "d2") for each in made.sent(name) if isinstance(each, Open)]
    priorities = {each.job.sampling.choice: each.job.priority for each in orders}
    assert priorities == {0: 0, 1: BEHIND_STEPS}
    assert alone.seniority(1.0) < many[1].seniority(1.0)


@virtual
async def test_the_estimate_of_a_new_requests_wait_leaves_out_the_prompts_that_it_overtakes() -> None:
    made = fast_mesh()
    many = batch(made, 2)
    admission = control(made)
    assert admission.wait_seconds("m") == 0.0, "the second prompt went to the other worker"
    first, second = (made.workers[made.serving(each)[0]] for each in many)
    assert (first.behind_tokens, second.behind_tokens) == (0, 150)
    first.report(Load(queued_tokens=400, tokens_per_second=SPEED))
    second.report(Load(queued_tokens=250, tokens_per_second=SPEED))
    assert admission.wait_seconds("m") == 0.1, "150 of 250 tokens are of a choice behind another one"
    first_token(made, many[1])
    assert second.behind_tokens == 0 and admission.wait_seconds("m") == 0.25
    made.sequencer.end(many[0], Unavailable("over"))
    third = batch(made, 2)[1]
    made.sequencer.end(third, Unavailable("over"))
    assert all(worker.behind_tokens == 0 for worker in made.workers.values())


@virtual
async def test_a_part_of_the_places_at_decode_is_kept_for_others() -> None:
    made = fast_mesh(free_places=4)
    many = batch(made, 16, tokens=1)
    assert len(at_work(many)) == 7, "of eight places one is kept"
    for name in ("d1", "d2"):
        made.workers[name].report(Load(free_pages=64, total_pages=64, running=4, free_places=0, place_seconds=1.0))
    first_token(made, many[0], End.LENGTH)
    assert len(at_work(many)) == 6, "none is free"
    made.workers["d1"].report(Load(free_pages=64, total_pages=64, running=2, free_places=2))
    made.sequencer.on_room(made.workers["d1"])
    assert len(at_work(many)) == 7


@virtual
async def test_the_next_choice_begins_however_full_the_mesh_is_when_no_other_is_at_work() -> None:
    made = fast_mesh(running=8, place_seconds=1.0)
    many = batch(made, 3)
    assert at_work(many) == [0]
    first_token(made, many[0], End.LENGTH)
    assert at_work(many) == [1]


@virtual
async def test_a_client_that_leaves_takes_those_along_that_wait_for_their_turn() -> None:
    made = fast_mesh()
    many = batch(made, 6)
    for each in reversed(many):
        made.sequencer.end(each, Unavailable("over"))
    assert not made.sequencer.requests and made.sequencer.tally.waiting == 0
    assert at_work(batch(made, 1)) == [0]


@virtual
async def test_room_at_a_worker_moves_no_choice_whose_turn_has_not_come() -> None:
    made = fast_mesh()
    many = batch(made, 4)
    made.room("d1")
    assert at_work(many) == [0, 1]


@virtual
async def test_hundreds_of_choices_that_fail_when_their_turn_comes_all_end() -> None:
    made, trace = fast_mesh(), unrecorded()
    able = [accept(made, trace, index) for index in range(2)]
    many = [accept(made, trace, index, numerics="gone") for index in range(2, 900)]
    assert at_work(able) == [0, 1] and not any(each.ended for each in many)
    first_token(made, able[0], End.LENGTH)
    assert all(each.ended for each in many), "none is left behind in the line"
