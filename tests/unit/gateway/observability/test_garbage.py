"""Records of requests that are forgotten leave no garbage: a collection of it would stop every stream."""

import gc
from functools import partial
from random import Random
from weakref import ref

import pytest

from gateway.tracing.record import RequestRecord
from gateway.tracing.traces import KEPT_REQUESTS, RecentTraces
from mesh.messages.jobs import Sampling, Ticket, Tier
from mesh.telemetry.spans import KeptHere


@pytest.mark.parametrize("share", [1.0, 0.0])
async def test_a_record_is_gone_as_soon_as_nobody_keeps_it(share: float) -> None:
    traces = RecentTraces(KeptHere(share), random=Random(0))
    gc.collect()
    gc.disable()
    try:
        records = [ref(_ended(traces, number)) for number in range(KEPT_REQUESTS + 3)]
        gone = [find() is None for find in records]
        assert gone == [True] * 3 + [False] * KEPT_REQUESTS
    finally:
        gc.enable()


async def test_a_record_that_its_choices_refer_to_stays_until_a_collection() -> None:
    """Negative control."""
    traces = RecentTraces(KeptHere(1.0), random=Random(0))
    gc.collect()
    gc.disable()
    try:
        record = _ended(traces, 0)
        record.choices[0].expect = partial(setattr, record, "message")
        find = ref(record)
        del record
        for number in range(KEPT_REQUESTS):
            _ended(traces, number + 1)
        assert find() is not None
        gc.collect()
        assert find() is None
    finally:
        gc.enable()


def _ended(traces: RecentTraces, number: int) -> RequestRecord:
    record = traces.begin("POST /v1/completions", "", {})
    choice = record.choice(0.0, (1, 2), Sampling(max_tokens=1))
    choice.sends(Ticket(number, 1, bytes(16)), Tier.PREFILL, "prefill", 0.0)
    choice.token(0.0, Tier.PREFILL)
    choice.ends(0.0, "stop")
    traces._finish(record)
    return record
