"""Requests are tried until they have an outcome: what is tried again, after how long, and what is final.

Virtual time: every pause is exact and costs nothing."""

import asyncio
import json
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from cli.batch.http_asker import HttpAsker
from cli.connecting.http_url import HttpUrl
from gateway.batches.lines import BatchLine
from gateway.batches.outcome import BatchOutcome
from gateway.batches.problems import BatchStopped
from gateway.batches.retrying import RetryRule, retry_after_seconds
from gateway.batches.runner import PRIORITY, BatchRunner, BatchTally
from tests.sim.loop import run_virtual
from tests.unit.cli.batch.batch_files import EchoServer
from tests.unit.cli.load.fake_server import Answers, FakeRequest, Hangup, connector, whole

BUSY = whole(503, {"error": {"message": "no worker"}})


class Kept:
    """The outcomes of a run, and what its observer saw."""

    def __init__(self) -> None:
        self.outcomes: list[BatchOutcome] = []
        self.reasons: list[str] = []

    def write(self, outcome: BatchOutcome) -> None:
        self.outcomes.append(outcome)

    def settled(self, tally: BatchTally) -> None: ...

    def waits(self, tally: BatchTally, why: str) -> None:
        self.reasons.append(why)

    @property
    def statuses(self) -> list[int | None]:
        return [each.answer.status if each.answer else None for each in self.outcomes]


def lines(count: int, **body: Any) -> Iterator[BatchLine]:
    for number in range(count):
        yield BatchLine(f"r-{number}", "/v1/completions", {"prompt": f"r-{number}"} | body)


def run(
    answers: Answers,
    given: Iterator[BatchLine],
    *,
    concurrency: int = 1,
    tries: int = 500,  # more than any test needs: a server that fails ends the test
    timeout_seconds: float = 60.0,
    path: str = "/v1",
    **options: Any,
) -> tuple[Kept, BatchTally, float]:
    """The outcomes, the totals, and the seconds that it took."""
    kept = Kept()

    async def main() -> tuple[Kept, BatchTally, float]:
        clock = asyncio.get_running_loop().time
        begun = clock()
        url = HttpUrl(False, "fake", 80, path)
        asker = HttpAsker(url, {}, timeout_seconds=timeout_seconds, connect=connector(answers))
        runner = BatchRunner(asker, kept, kept, rule=RetryRule(tries), random=Random(1), **options)
        await runner.run(given, concurrency)
        return kept, runner.tally, clock() - begun

    return run_virtual(main())


def test_every_request_gets_its_own_answer_and_tokens_are_counted() -> None:
    server = EchoServer()
    kept, tally, _ = run(server.answers, lines(20), concurrency=4)
    assert {each.custom_id for each in kept.outcomes} == {f"r-{n}" for n in range(20)}
    for each in kept.outcomes:
        assert each.answer is not None and each.answer.body["choices"][0]["text"] == each.custom_id
        assert each.answer.request_id == f"id-of-{each.custom_id}"
    assert (tally.answered, tally.failed, tally.again) == (20, 0, 0)
    assert (tally.prompt_tokens, tally.completion_tokens) == (60, 40)


@pytest.mark.parametrize("concurrency", [1, 5])
def test_no_more_requests_are_under_way_than_allowed_and_no_more_are_read(concurrency: int) -> None:
    under_way = most = read = ended = ahead = 0

    async def answers(request: FakeRequest) -> Any:
        nonlocal under_way, most, ended
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(1.0)
        under_way -= 1
        ended += 1
        yield EchoServer.echo(request)

    def counted() -> Iterator[BatchLine]:
        nonlocal read, ahead
        for line in lines(20):
            read += 1
            ahead = max(ahead, read - ended)
            yield line

    _, tally, seconds = run(answers, counted(), concurrency=concurrency)
    assert most == ahead == concurrency and tally.answered == 20 and seconds == pytest.approx(20 / concurrency)


@pytest.mark.parametrize("status", [408, 429, 502, 503])
def test_an_answer_that_means_later_is_tried_again_until_it_is_another(status: int) -> None:
    server = EchoServer(*[whole(status, {"error": {"message": "later"}})] * 40)
    kept, tally, _ = run(server.answers, lines(1))
    assert kept.statuses == [200] and tally.again == 40 and kept.reasons == [f"HTTP {status}"] * 40


@pytest.mark.parametrize("status", [400, 404, 413, 500, 504])
def test_an_answer_that_another_try_would_repeat_is_final(status: int) -> None:
    server = EchoServer(whole(status, {"error": {"message": "wrong", "param": "prompt"}}, "x-request-id: mine"))
    kept, tally, _ = run(server.answers, lines(2))
    assert kept.statuses == [status, 200] and (tally.answered, tally.failed, tally.again) == (1, 1, 0)
    value = json.loads(kept.outcomes[0].line())
    error = {"message": "wrong", "param": "prompt"}
    assert value["response"] == {"status_code": status, "request_id": "mine", "body": {"error": error}}
    assert value["error"] is None


def test_a_refusal_that_is_no_json_keeps_its_text() -> None:
    page = b"HTTP/1.1 404 X\r\ncontent-length: 9\r\n\r\n<b>no</b>"
    kept, _, _ = run(EchoServer(page).answers, lines(1))
    assert json.loads(kept.outcomes[0].line())["response"]["body"]["error"]["message"] == "<b>no</b>"


def test_retry_after_is_waited_for() -> None:
    server = EchoServer(whole(429, {}, "retry-after: 100"), whole(503, {}, "retry-after: 9", "retry-after-ms: 2500"))
    _, tally, seconds = run(server.answers, lines(1))
    assert tally.again == 2 and 102.5 <= seconds <= 1.25 * 102.5


def test_the_time_between_two_tries_grows_to_a_bound_and_is_spread() -> None:
    rule, random = RetryRule(), Random(1)
    pauses = [[rule.pause_seconds(tried, 0.0, random) for _ in range(200)] for tried in (1, 2, 5, 9, 10_000)]
    for found, most in zip(pauses, (0.5, 1.0, 8.0, 10.0, 10.0), strict=True):
        assert most / 2 <= min(found) < 0.6 * most and 0.9 * most < max(found) <= most


def test_without_a_number_of_tries_there_is_always_another_one() -> None:
    assert RetryRule().may_again(10**9)
    assert [RetryRule(3).may_again(tried) for tried in (1, 2, 3)] == [True, True, False]


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, 0.0),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "7", "retry-after-ms": "250"}, 0.25),
        ({"retry-after": "Fri, 31 Dec 1999 23:59:59 GMT"}, 0.0),
        ({"retry-after": "-1"}, 0.0),
        ({"retry-after": "inf"}, 0.0),
        ({"retry-after": "nan"}, 0.0),
    ],
)
def test_retry_after_is_read_in_both_spellings(headers: dict[str, str], seconds: float) -> None:
    assert retry_after_seconds(headers) == seconds


def lossy(lost: int) -> Answers:
    """A server that drops the connection of the first tries, before or inside the answer."""
    server, left = EchoServer(), lost

    async def answers(request: FakeRequest) -> Any:
        nonlocal left
        if left:
            left -= 1
            if left % 2:
                yield EchoServer.echo(request)[:-3]
            raise Hangup
        async for piece in server.answers(request):
            yield piece

    return answers


def test_lost_connections_are_tried_again() -> None:
    kept, tally, _ = run(lossy(25), lines(2))
    assert kept.statuses == [200, 200] and tally.again == 25
    assert set(kept.reasons) == {
        "connection lost: the server closed the connection without an answer",
        "connection lost: the server closed the connection inside an answer",
    }


def test_with_a_number_of_tries_the_last_one_is_the_outcome() -> None:
    kept, tally, _ = run(lossy(4), lines(2), tries=3)
    assert kept.statuses == [None, 200] and (tally.answered, tally.failed, tally.again) == (1, 1, 3)
    error = json.loads(kept.outcomes[0].line())["error"]
    assert error["code"] == "connection_lost" and "the server closed the connection" in error["message"]
    refused, _, _ = run(EchoServer(BUSY, BUSY).answers, lines(1), tries=2)
    assert refused.statuses == [503]


def test_an_answer_that_does_not_end_is_tried_again_after_the_time_limit() -> None:
    asked = 0

    async def answers(request: FakeRequest) -> Any:
        nonlocal asked
        asked += 1
        if asked == 1:
            yield EchoServer.echo(request)[:-3]
            await asyncio.sleep(1e6)
        yield EchoServer.echo(request)

    kept, _, seconds = run(answers, lines(1), timeout_seconds=50.0)
    assert kept.statuses == [200] and kept.reasons == ["no whole answer after 50 s"] and 50 < seconds < 51


def test_an_answer_that_is_no_json_is_final() -> None:
    page = b"HTTP/1.1 200 X\r\ncontent-length: 2\r\n\r\nhi"
    kept, tally, _ = run(EchoServer(page).answers, lines(1))
    error = json.loads(kept.outcomes[0].line())["error"]
    assert error["code"] == "broken_answer" and "no JSON object: hi" in error["message"] and tally.failed == 1


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (whole(401, {"error": {"message": "the key is unknown"}}), "status 401: the key is unknown"),
        (whole(403, {}), "status 403: it gives no reason"),
        (whole(307, {}, "location: http://other"), "redirects to http://other"),
    ],
)
def test_what_every_request_would_meet_ends_the_run_and_is_no_outcome(answer: bytes, message: str) -> None:
    with pytest.raises(BatchStopped, match=message):
        run(EchoServer(*[answer] * 4).answers, lines(4), concurrency=4)


def test_an_outcome_that_cannot_be_written_ends_the_run_with_all_that_is_under_way() -> None:
    under_way = 0

    async def answers(request: FakeRequest) -> Any:
        nonlocal under_way
        under_way += 1
        await asyncio.sleep(1.0 if request.fields["prompt"] == "r-0" else 1e6)
        yield EchoServer.echo(request)

    class FullSink(Kept):
        def write(self, outcome: BatchOutcome) -> None:
            raise BatchStopped("the disk is full")

    async def main() -> None:
        asker = HttpAsker(HttpUrl(False, "fake", 80, "/v1"), {}, timeout_seconds=1e9, connect=connector(answers))
        sink = FullSink()
        await BatchRunner(asker, sink, sink, rule=RetryRule(), random=Random(1)).run(lines(9), 3)

    with pytest.raises(BatchStopped, match="the disk is full"):
        run_virtual(main())
    assert under_way == 3


def priorities(server: EchoServer) -> list[Any]:
    return [each.fields.get("priority") for each in server.requests]


def test_bodies_without_a_priority_get_one_behind_people_who_wait() -> None:
    server = EchoServer()
    given = [*lines(1), *lines(1, priority=-5), *lines(1, priority=0), *lines(1, priority=None)]
    run(server.answers, iter(given))
    assert priorities(server) == [PRIORITY, -5, 0, PRIORITY] and PRIORITY > 0
    server = EchoServer()
    run(server.answers, lines(1), priority=7)
    assert priorities(server) == [7]


def test_a_default_priority_that_the_tenant_may_not_use_is_left_out() -> None:
    refusal = whole(400, {"error": {"message": "priority must be from 0 to 100", "param": "priority"}})
    server = EchoServer(refusal)
    kept, _, _ = run(server.answers, lines(2), drops_priority=True)
    assert kept.statuses == [200, 200] and priorities(server) == [PRIORITY, None, None]
    asked = EchoServer(refusal)
    kept, _, _ = run(asked.answers, lines(1), priority=300)  # the user's own choice is not changed
    assert kept.statuses == [400]


@pytest.mark.parametrize(("path", "sent"), [("/v1", "/v1/completions"), ("/team/v1", "/team/v1/completions")])
def test_the_url_of_a_line_follows_the_address_of_the_mesh(path: str, sent: str) -> None:
    server = EchoServer()
    run(server.answers, lines(1), path=path)
    assert [each.path for each in server.requests] == [sent]


@pytest.mark.parametrize("text", ["日本語" * 1000, "half of a pair: \ud800"])
def test_a_body_arrives_as_it_stands_in_the_file_and_not_much_longer(text: str) -> None:
    server = EchoServer()
    run(server.answers, iter([BatchLine("a", "/v1/completions", {"prompt": text})]))
    assert server.requests[0].fields["prompt"] == text
    assert len(server.requests[0].body) < 3.1 * len(text) + 60
