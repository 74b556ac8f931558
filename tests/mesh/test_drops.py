"""A hundred connections dropped in mid-request over HTTP and gRPC leave nothing behind. `make drops` is the long
test; this is a short one and its negative control."""

from random import Random

import pytest

from tests.chaos import drops
from tests.chaos.dropped import STAGES, grpc_message, has_token, is_refused

pytestmark = pytest.mark.mesh


async def test_dropped_connections_leave_nothing_running_on_any_tier() -> None:
    report = await drops.drop_many(120, Random(3), before=20)
    assert not any(report["left"].values()), report
    assert sum(sum(stages.values()) for stages in report["drops"].values()) == 120, report
    assert all(report["drops"][door][stage] for door in report["drops"] for stage in STAGES), report
    assert report["answered"] > 40  # the warm-up included


async def test_a_gateway_that_does_not_notice_its_clients_leave_goes_on_working(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Negative control: what is left is seen."""
    monkeypatch.setattr("tests.chaos.dropped.ANSWER_SECONDS", 1.0)  # the slots fill up
    monkeypatch.setattr(drops, "QUIET_SECONDS", 1.0)
    report = await drops.drop_many(12, Random(3), before=0, notices=False)
    assert report["left"]["gateway_requests"] > 0 and report["left"]["worker_requests"] > 0, report


async def test_a_connection_that_stays_open_is_told_from_one_that_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drops, "QUIET_SECONDS", 0.3)
    for open_sockets, fewest in (([9, 9, 8], 8), ([10, 9, 10], 9)):
        seen = iter(open_sockets)
        monkeypatch.setattr(drops, "gateway_sockets", lambda _, seen=seen, last=open_sockets[-1]: next(seen, last))
        assert await drops.fewest_connections(drops.ProcessMesh.__new__(drops.ProcessMesh), enough=8) == fewest


def test_the_first_event_of_an_answer_is_told_from_its_head() -> None:
    assert not has_token("http", b"HTTP/1.1 200 OK\r\n\r\n")
    assert not has_token("http", b'HTTP/1.1 503\r\n\r\n\ndata: {"error": 1}')
    assert has_token("http", b'HTTP/1.1 200 OK\r\n\r\n1f\r\ndata: {"id": 1}\n\n')
    frame = grpc_message("hi")
    assert has_token("grpc", b"\0\0\0\4\0\0\0\0\0" + frame) and not has_token("grpc", frame[:-1])


def test_a_refusal_is_told_from_an_answer() -> None:
    head, end = b"\0\0\1\1\5\0\0\0\1x", b"\0\0\1\1\4\0\0\0\1x"
    assert is_refused("http", b"HTTP/1.1 429 Too Many Requests\r\n") and not is_refused("http", b"HTTP/1.1 200 OK")
    assert is_refused("grpc", head) and not is_refused("grpc", end)
    assert not is_refused("grpc", end + grpc_message("x") + head), "the status behind an answer"
