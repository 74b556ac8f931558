"""Which silent worker keeps a request waiting."""

from types import SimpleNamespace
from typing import Any

import pytest

from gateway.attaching.hung_workers import silent_for

PREFILL, DECODE = 1, 2


def worker(limit_seconds: float) -> Any:
    return SimpleNamespace(step_limit_seconds=limit_seconds)


@pytest.mark.parametrize("awaited", [PREFILL, DECODE])
def test_a_decode_worker_whose_step_takes_too_long_keeps_a_request_waiting_whatever_prefill_does(awaited: int) -> None:
    request: Any = SimpleNamespace(decode=DECODE, awaited=awaited)
    silent = {PREFILL: worker(0.0), DECODE: worker(40.0)}
    assert silent_for(request, silent) is silent[DECODE]


def test_without_a_long_step_the_request_waits_for_whom_it_awaits() -> None:
    request: Any = SimpleNamespace(decode=DECODE, awaited=PREFILL)
    silent = {PREFILL: worker(0.0), DECODE: worker(0.0)}
    assert silent_for(request, silent) is silent[PREFILL]
    assert silent_for(request, {DECODE: worker(0.0)}) is None
    assert silent_for(SimpleNamespace(decode=None, awaited=PREFILL), silent) is silent[PREFILL]  # type: ignore[arg-type]
