"""A slice of `make fuzz`; a broken target is reported with the seed that repeats it."""

import logging
import os
from random import Random

import numpy as np
import pytest

from tests.fuzz.__main__ import CASE_BYTES, Slice, SliceOutcome, fuzz, run, slices
from tests.fuzz.cases import Wrong
from tests.fuzz.targets import NATIVE, SHARES, TARGETS, WIRES

CASES = {
    "sse_frames": 600,
    "tool_parsers": 300,
    "templates": 150,
    "translations": 500,
    "answer_events": 300,
    "model_files": 300,
    "gateway_reports": 120,
    "kv_answers": 300,
    "kv_control": 300,
    "kv_copies": 400,
    "kv_frames": 300,
    "kv_greetings": 300,
    "kv_welcomes": 500,
    "mesh_credentials": 500,
    "mesh_messages": 1500,
    "tls_handshakes": 60,
    "worker_orders": 80,
}


@pytest.mark.parametrize(("target", "cases"), CASES.items())
def test_random_cases_break_nothing(target: str, cases: int) -> None:
    outcome = run(Slice(target, 0, cases))
    assert outcome.failures == []
    assert outcome.reached >= cases // 8, "most cases end at the first check"


def test_every_target_has_a_share_and_a_slice() -> None:
    assert set(TARGETS) == set(SHARES) == set(CASES) and set(NATIVE) <= set(WIRES)
    parts = slices(10_001, 1, sorted(TARGETS))
    assert sum(part.cases for part in parts) == 10_001 and {part.target for part in parts} == set(TARGETS)


def test_a_case_that_fails_is_named_with_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(rng: Random) -> bool:
        if (drawn := rng.random()) == Random(7).random():
            raise Wrong("seven")
        return drawn == Random(8).random()

    monkeypatch.setitem(TARGETS, "broken", broken)
    assert run(Slice("broken", 5, 4)) == SliceOutcome(["--target broken --seed 7: Wrong: seven"], 1)
    assert logging.root.manager.disable == 0, "the code logs again"


def test_a_case_that_takes_too_much_memory_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(rng: Random) -> bool:
        return rng.random() == Random(0).random() or len(np.empty(2 * CASE_BYTES, np.uint8)) > 0

    monkeypatch.setitem(TARGETS, "greedy", greedy)
    (failure,) = run(Slice("greedy", 1, 1)).failures
    assert failure.startswith("--target greedy --seed 1: ") and "MemoryError" in failure
    assert len(np.empty(2 * CASE_BYTES, np.uint8)) > 0, "behind the slice there is no bound"


def test_a_process_that_dies_is_a_failure_of_its_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TARGETS, "deadly", lambda rng: os._exit(1))
    ((part, outcome),) = fuzz([Slice("deadly", 3, 4)], workers=2)
    assert part.seed == 3
    assert outcome.failures == [
        "--target deadly --seed 3 --cases 4 --workers 1: a process died in this slice or before it"
    ]
