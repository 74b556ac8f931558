"""The figures of bench/crowd.py: what misses a target, and what does not."""

import pytest

from bench.crowd import LEAST, MOST, report
from bench.overload_figures import Served

LEAST_REQUESTS = int(LEAST["requests"])


def served(*, first: float = 0.1, done: bool = True, status: int = 200) -> Served:
    return Served("small", 48, 32, came=10.0, status=status, first=10.0 + first, last=11.0, ended=11.0, done=done)


def test_small_requests_that_are_answered_at_once_miss_nothing():
    found = report([served()] * LEAST_REQUESTS, [200, 200, 0, 0], 60.0)
    assert found["missed"] == []
    assert found["answered_share"] == 1 and found["ttft_p99"] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("requests", "statuses", "words"),
    [
        ([served()] * (LEAST_REQUESTS - 1), [200], "requests is 99, wanted >= 100"),
        ([served()] * 98 + [served(done=False, status=429)] * 2, [200], "answered_share is 0.98"),
        ([served()] * 98 + [served(first=MOST["ttft_p99"] + 0.1)] * 2, [200], "ttft_p99 is 0.6, wanted <= 0.5"),
        ([served()] * LEAST_REQUESTS, [200, 429], "batches were answered with [429]"),
    ],
)
def test_each_target_can_be_missed(requests: list[Served], statuses: list[int], words: str):
    (line,) = report(requests, statuses, 60.0)["missed"]
    assert words in line


def test_answers_of_refused_requests_are_no_first_tokens():
    refused = [served(done=False, status=429)] * LEAST_REQUESTS
    assert report(refused, [200], 60.0)["refused"] == LEAST_REQUESTS
