"""A deadline that cannot be met is refused at once, and a request that will miss its own ends before it does."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx2 as httpx
import pytest

from gateway.core.interface import ChoiceRequest
from gateway.prompts.assets import Assets
from gateway.sequencing.deadlines import SURE
from gateway.sequencing.requests import GatewayRequest, RequestPhase
from mesh.errors import DeadlineExceeded, Overloaded
from mesh.messages.jobs import Sampling
from mesh.messages.orders import Cancel
from mesh.messages.reports import Load
from tests.sim.loop import run_virtual, virtual
from tests.unit.gateway.fake_mesh import SequencerMesh, control, error_of, mesh
from tests.unit.gateway.http.test_http_common import client

PACE = 0.1


def choice(tokens: int, deadline: float, *, prompt: int = 10, least: int | None = None) -> ChoiceRequest:
    sampling, least = Sampling(max_tokens=tokens), tokens if least is None else least
    return ChoiceRequest("r", "m", tuple(range(prompt)), (), sampling, deadline_seconds=deadline, least_tokens=least)


async def answer(made: SequencerMesh, request: GatewayRequest, tokens: int, *, pace: float = PACE) -> None:
    """Its decode worker sends so many tokens, as long as the request runs."""
    for position in range(request.next_position, request.next_position + tokens):
        if request.ended:
            return
        made.token(made.serving(request)[1], request.ticket, position)
        await asyncio.sleep(pace)


async def taught(made: SequencerMesh, *, pace: float = PACE) -> None:
    """Some answers have ended at this pace."""
    for _ in range(4):
        request = made.accept(max_tokens=12)
        await answer(made, request, 11, pace=pace)
        made.sequencer.end(request)


@virtual
async def test_a_deadline_that_the_answer_alone_would_pass_is_refused_at_once() -> None:
    made = mesh()
    admission = control(made, paces=made.sequencer.paces)
    now = asyncio.get_running_loop().time
    admission.accept(choice(100, 5.0), now(), draining=False)  # no pace is known yet
    await taught(made)
    with pytest.raises(DeadlineExceeded, match=r"take at least 7\.9 s, and 5 s are left"):
        admission.accept(choice(100, 5.0), now(), draining=False)
    assert admission.refusals["deadline"] == 1
    admission.accept(choice(100, 5.0, least=1), now(), draining=False)  # it may end with its first token
    admission.accept(choice(100, 9.0), now(), draining=False)
    await asyncio.sleep(61.0)
    admission.accept(choice(100, 5.0), now(), draining=False)  # that pace is too old


@virtual
async def test_and_so_is_one_that_its_prompt_would_pass() -> None:
    made = mesh()
    for worker in made.workers.values():
        worker.report(Load(free_pages=64, total_pages=64, tokens_per_second=100.0))
    admission, now = control(made, paces=made.sequencer.paces), asyncio.get_running_loop().time()
    with pytest.raises(DeadlineExceeded, match=r"take at least 4\.0 s, and 3 s are left"):
        admission.accept(choice(10, 3.0, prompt=500), now, draining=False)
    for name in ("p1", "p2"):
        made.workers[name].report(Load(free_pages=64, total_pages=64, queued_tokens=300, tokens_per_second=100.0))
    with pytest.raises(Overloaded, match=r"and its own tokens, take about 7\.0 s, and its deadline is in 5 s"):
        admission.accept(choice(10, 5.0, prompt=500), now, draining=False)
    for name in ("p1", "p2"):
        made.workers[name].report(Load(free_pages=64, total_pages=64, tokens_per_second=100.0))
    admission.accept(choice(10, 5.0, prompt=500), now, draining=False)
    limit = admission.start_limit(choice(10, 5.0, prompt=500), now)
    assert limit is not None and limit.seconds == pytest.approx(1.0) and not limit.of_queue


@virtual
async def test_the_other_prompts_of_a_request_count_as_its_own() -> None:
    made = mesh()
    for worker in made.workers.values():
        worker.report(Load(free_pages=64, total_pages=64, tokens_per_second=100.0))
    count = len(made.workers)
    admission, now = control(made, paces=made.sequencer.paces), asyncio.get_running_loop().time()
    batch = replace(choice(1, 3.0, prompt=100), beside_tokens=500 * count)
    with pytest.raises(DeadlineExceeded, match=r"prompts and answers of this request take at least 4\.\d s"):
        admission.accept(batch, now, draining=False)
    admission.accept(replace(batch, beside_tokens=100), now, draining=False)


@virtual
async def test_a_request_that_comes_after_its_deadline_is_told_so() -> None:
    made = mesh()
    admission, now = control(made, paces=made.sequencer.paces), asyncio.get_running_loop().time()
    with pytest.raises(DeadlineExceeded, match="passed before it was read"):
        admission.accept(choice(10, -0.04), now, draining=False)


@virtual
async def test_a_short_wait_is_not_what_makes_a_request_late() -> None:
    """Half a second behind others, and eight of its own: it would come too late on an idle mesh, or nearly."""
    made = mesh()
    for worker in made.workers.values():
        worker.report(Load(free_pages=64, total_pages=64, queued_tokens=50, tokens_per_second=100.0))
    admission, now = control(made, paces=made.sequencer.paces), asyncio.get_running_loop().time()
    with pytest.raises(DeadlineExceeded, match="allow more time"):
        admission.accept(choice(1, 8.2, prompt=1000), now, draining=False)


@pytest.mark.parametrize("hopeless", [True, False])
def test_a_request_that_will_miss_its_deadline_ends_before(hopeless: bool) -> None:
    async def main() -> tuple[GatewayRequest, float, int]:
        made, loop = mesh(), asyncio.get_running_loop()
        began = loop.time()
        request = made.sequencer.accept(choice(100 if hopeless else 40, 5.0))
        decode = made.serving(request)[1]
        made.sent(decode)
        await answer(made, request, 100 if hopeless else 39)
        cancels = sum(isinstance(each, Cancel) for each in made.sent(decode))
        return request, loop.time() - began, cancels

    request, seconds, cancels = run_virtual(main())
    if hopeless:
        error = error_of(request)
        assert isinstance(error, DeadlineExceeded) and "before the end of the answer" in str(error)
        assert seconds < 3.0 and len(request.shown) < 30 and cancels == 1, "its workers stop, too"
    else:
        assert request.phase is RequestPhase.OPEN and not cancels, "negative control: it would be in time"


def test_a_request_that_may_end_early_runs_until_its_deadline() -> None:
    async def main() -> GatewayRequest:
        made = mesh()
        request = made.sequencer.accept(choice(100, 3.0, least=1))
        await answer(made, request, 100)
        return request

    request = run_virtual(main())
    assert str(error_of(request)) == "the request's deadline passed" and 28 <= len(request.shown) <= 31


@virtual
async def test_the_pace_is_that_of_the_quickest_quarter_of_the_last_answers() -> None:
    made = mesh()
    await taught(made, pace=0.4)
    slow = made.sequencer.paces.quick(asyncio.get_running_loop().time())
    await taught(made)
    paces, now = made.sequencer.paces, asyncio.get_running_loop().time()
    assert slow == pytest.approx(0.4) and paces.quick(now) == pytest.approx(PACE)
    assert paces.answer_seconds(choice(11, 9.0), now) == pytest.approx(SURE * PACE * 10)
    carried = replace(choice(11, 9.0), emitted=(1, 2, 3, 4))
    assert paces.answer_seconds(carried, now) == pytest.approx(SURE * PACE * 6)


def test_a_request_whose_deadline_has_passed_at_the_door_ends_with_the_next_pass_of_the_loop() -> None:
    async def main() -> GatewayRequest:
        made = mesh()
        request = made.sequencer.accept(choice(10, 0.0))
        assert request.phase is RequestPhase.OPEN
        await asyncio.sleep(0.001)
        return request

    assert isinstance(error_of(run_virtual(main())), DeadlineExceeded)


@pytest.fixture
async def http(core: Any, assets: Assets) -> AsyncIterator[httpx.AsyncClient]:
    async with client(core, assets) as made:
        yield made


TIMEOUT = {"x-request-timeout-ms": "2500"}
ASKED: dict[str, Any] = {"model": "tiny", "max_tokens": 4}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {**ASKED, "prompt": "hi"},
    "/v1/chat/completions": {**ASKED, "messages": [{"role": "user", "content": "hi"}]},
    "/v1/responses": {"model": "tiny", "input": "hi"},
    "/v1/messages": {**ASKED, "messages": [{"role": "user", "content": "hi"}]},
}


@pytest.mark.parametrize("path", BODIES)
async def test_the_header_of_a_request_is_its_deadline(http: httpx.AsyncClient, core: Any, path: str) -> None:
    answer = await http.post(path, json=BODIES[path], headers=TIMEOUT)
    assert answer.status_code == 200, answer.text
    assert 1.0 < core.streams[-1].choice.deadline_seconds <= 2.5
    await http.post(path, json=BODIES[path])
    assert core.streams[-1].choice.deadline_seconds is None


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("value", ["", "0", "-1", "1.5", "soon", "9" * 13])
async def test_a_wrong_time_is_refused_by_the_headers_name(http: httpx.AsyncClient, path: str, value: str) -> None:
    answer = await http.post(path, json=BODIES[path], headers={"x-request-timeout-ms": value})
    assert answer.status_code == 400 and "x-request-timeout-ms" in answer.text


async def test_a_time_that_comes_twice_is_refused(http: httpx.AsyncClient) -> None:
    twice = [("x-request-timeout-ms", "500"), ("x-request-timeout-ms", "30000")]
    answer = await http.post("/v1/completions", json=BODIES["/v1/completions"], headers=twice)
    assert answer.status_code == 400 and "comes 2 times" in answer.text


async def test_the_error_of_a_deadline_names_its_header(http: httpx.AsyncClient, core: Any) -> None:
    core.refuse = DeadlineExceeded("the request's deadline passed")
    answer = await http.post("/v1/completions", json=BODIES["/v1/completions"], headers=TIMEOUT)
    error = answer.json()["error"]
    assert answer.status_code == 504 and error["param"] == "x-request-timeout-ms"
    assert error["message"] == "the request's deadline passed (x-request-timeout-ms: 2500)"
    core.refuse = DeadlineExceeded("the request's deadline passed")
    answer = await http.post("/v1/completions", json=BODIES["/v1/completions"])
    assert answer.json()["error"]["param"] is None, "a deadline of another kind"


@pytest.mark.parametrize(
    ("more", "least"),
    [
        ({"ignore_eos": True}, 4),
        ({}, 1),
        ({"min_tokens": 3}, 3),
        ({"ignore_eos": True, "stop": ["x"]}, 1),
        ({"ignore_eos": True, "stop_token_ids": [5], "min_tokens": 3}, 3),
    ],
)
async def test_an_answer_has_at_least_the_tokens_that_its_request_fixes(
    http: httpx.AsyncClient, core: Any, more: dict[str, Any], least: int
) -> None:
    body = {"model": "tiny", "prompt": "hi", "max_tokens": 4, **more}
    await http.post("/v1/completions", json=body)
    assert core.streams[-1].choice.least_tokens == least
