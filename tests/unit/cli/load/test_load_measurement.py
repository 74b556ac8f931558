"""The generator measures known delays exactly, counts from the scheduled time, and says when it is late itself."""

import asyncio
from collections.abc import Sequence
from random import Random

import pytest

from cli.load.form import Endpoint, RequestForm
from cli.load.plan import LoadRequest
from cli.load.prompts import TokenPrompts
from cli.load.record import MeasuredRequest
from cli.load.run import LoadRun, lateness
from cli.load.schedule import poisson_times
from cli.load.statistics import LatencyLimits, summarize
from tests.sim.loop import run_virtual
from tests.unit.cli.load.fake_server import FakeOpenAi, target

FORM = RequestForm("fake", Endpoint.COMPLETIONS, TokenPrompts(range(33, 97), 0))


def run(
    server: FakeOpenAi,
    requests: Sequence[LoadRequest],
    *,
    times: Sequence[float] | None = None,
    concurrency: int | None = None,
) -> LoadRun:
    async def main() -> LoadRun:
        server.lock = asyncio.Lock()
        running = LoadRun(target(server.answers), FORM, requests)
        await running.run(times=times, concurrency=concurrency, on_sent=lambda _: None, on_ended=lambda _: None)
        return running

    return run_virtual(main())


def test_known_delays_are_measured_exactly() -> None:
    measured = run(FakeOpenAi(first_seconds=0.25, gap_seconds=0.03), [LoadRequest(7, 5)], times=[0.0])
    (record,) = measured.records
    assert record.ttft == pytest.approx(0.25)
    assert record.gaps == pytest.approx([0.03] * 4)
    assert record.tpot == pytest.approx(0.03) and record.e2e == pytest.approx(0.25 + 4 * 0.03)
    assert (record.prompt_tokens, record.completion_tokens, record.error) == (7, 5, "")


def test_in_an_open_loop_the_queue_inside_the_server_is_part_of_every_latency() -> None:
    """The server takes 0.1 s per request and ten arrive at once: the n-th waits for all before it."""
    measured = run(FakeOpenAi(serial=True), [LoadRequest(4, 1)] * 10, times=[0.0] * 10)
    assert [each.ttft for each in measured.records] == pytest.approx([0.1 * n for n in range(1, 11)])
    assert all(each.begun == each.scheduled for each in measured.records)


def test_negative_control_a_generator_that_counts_from_sending_hides_the_queue() -> None:
    """It sends each request when the one before has ended, and so reports the tenth as fast as the first."""
    measured = run(FakeOpenAi(serial=True), [LoadRequest(4, 1)] * 10, concurrency=1)
    first = measured.records[0].scheduled  # all ten should have been sent at this time
    assert [each.ttft for each in measured.records] == pytest.approx([0.1] * 10)
    assert measured.records[-1].first == pytest.approx(first + 1.0)


def test_a_request_that_the_generator_sends_late_is_measured_from_its_scheduled_time() -> None:
    record = MeasuredRequest(0, scheduled=10.0, begun=10.5, input_tokens=1, output_tokens=1, chunks=[11.0], ended=11.0)
    assert record.ttft == 1.0 and record.e2e == 1.0
    summary = summarize([record], LatencyLimits())
    assert summary.lateness_p99_seconds == 0.5
    assert "500.0 ms after their scheduled time" in lateness(summary, 0.0)[0]


def test_a_generator_that_keeps_up_is_not_marked_and_one_that_stands_still_is() -> None:
    measured = run(FakeOpenAi(), [LoadRequest(4, 3)] * 3, times=[0.0, 0.5, 1.0])
    summary = summarize(measured.records, LatencyLimits())
    assert lateness(summary, measured.loop_delay_p99_seconds) == []
    assert "stood still" in lateness(summary, 0.2)[0]


def test_a_blocked_event_loop_is_seen() -> None:
    async def main() -> LoadRun:
        loop = asyncio.get_running_loop()
        running = LoadRun(target(FakeOpenAi().answers), FORM, [LoadRequest(4, 3)])

        def block(record: MeasuredRequest) -> None:
            loop._now += 0.7  # type: ignore[attr-defined]

        await running.run(times=[0.0], concurrency=None, on_sent=block, on_ended=lambda _: None)
        return running

    assert max(run_virtual(main()).loop_delays) > 0.5


def test_a_closed_loop_keeps_its_number_of_requests_under_way() -> None:
    measured = run(FakeOpenAi(first_seconds=0.1), [LoadRequest(4, 1)] * 6, concurrency=2)
    assert [each.scheduled for each in measured.records] == pytest.approx([0.0, 0.0, 0.1, 0.1, 0.2, 0.2])


def test_poisson_times_begin_at_zero_rise_and_keep_their_rate() -> None:
    times = poisson_times(4000, 5.0, Random(1))
    assert times[0] == 0.0 and times == sorted(times)
    assert times[-1] == pytest.approx(4000 / 5.0, rel=0.1)
    assert times == poisson_times(4000, 5.0, Random(1)) != poisson_times(4000, 5.0, Random(2))


def test_an_interrupted_run_keeps_what_has_ended_and_marks_the_rest() -> None:
    async def main() -> LoadRun:
        running = LoadRun(target(FakeOpenAi().answers), FORM, [LoadRequest(4, 1), LoadRequest(4, 500)])
        work = running.run(times=[0.0, 0.0], concurrency=None, on_sent=lambda _: None, on_ended=lambda _: None)
        task = asyncio.ensure_future(work)
        await asyncio.sleep(1.0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return running

    summary = summarize(run_virtual(main()).records, LatencyLimits())
    assert (summary.finished, summary.failed, summary.unfinished) == (1, 0, 1)
