"""The least work of a step, by hand for a small model, and the time that it takes at least."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from engine.model.floor import NO_FLOOR, CpuFloor
from engine.model.work import ModelWork

# Two layers, hidden 4, one head of 4, feed-forward of 8, vocabulary of 10.
SMALL = ModelWork(
    layers=2,
    weight_bytes=1000,
    first_operations=2 * 12 * 4,
    rest_operations=2 * 4 * (4 + 2 * 8 + 8),
    head_operations=2 * 10 * 4,
    attention_operations=4 * 1 * 4,
    token_bytes=64,
)


def test_a_decode_step_reads_all_weights_and_its_context_once() -> None:
    work = SMALL.step(sequences=3, rows=1, start=7, sampled=1)
    assert work.nbytes == 1000 + 3 * (7 + 2) * 64


def test_the_operations_of_one_decode_row() -> None:
    work = SMALL.step(rows=1, start=7, sampled=1)
    products = 2 * 96 + 2 * 224 + 80  # both layers run whole for a row that is sampled, and the head
    assert work.operations == products + 16 * 8 * 2  # it sees seven slots and its own, in two layers


def test_rows_that_are_not_sampled_skip_the_rest_of_the_last_layer() -> None:
    work = SMALL.step(rows=4, start=0, sampled=1)
    products = 4 * 2 * 96 + (4 + 1) * 224 + 80
    seen, seen_by_last = 1 + 2 + 3 + 4, 4
    assert work.operations == products + 16 * (seen + seen_by_last)


def test_a_layer_with_a_window_sees_no_more_than_that() -> None:
    windowed = replace(SMALL, windows=(3, 0))
    decode, whole = windowed.step(rows=1, start=7, sampled=1), SMALL.step(rows=1, start=7, sampled=1)
    assert whole.operations - decode.operations == 16 * (8 - 3)
    assert whole.nbytes - decode.nbytes == (7 - 2) * 32
    prompt = windowed.step(rows=4, start=0, sampled=1)
    seen, seen_by_last = 1 + 2 + 3 + 3, 4
    assert prompt.operations == 4 * 2 * 96 + (4 + 1) * 224 + 80 + 16 * (seen + seen_by_last)
    far = replace(SMALL, windows=(3, 3)).step(rows=2, start=9, sampled=2)
    assert far.operations == 2 * 2 * 96 + 4 * 224 + 2 * 80 + 16 * 2 * 2 * 3
    assert far.nbytes == 1000 + (2 + 2 * 2) * 64


def test_a_floor_is_the_larger_of_bandwidth_and_peak() -> None:
    floor = CpuFloor(SMALL, "fp32", np.zeros(64, np.uint8))
    floor.read_bytes_per_second, floor.operations_per_second = 1e6, 1e9
    step = SMALL.step(rows=1, start=8 + 2, sampled=1)
    assert floor.answer_seconds(steps=5, start=8, tokens=5) == pytest.approx(5 * step.nbytes / 1e6)
    floor.operations_per_second = 1e3
    prompt = SMALL.step(rows=6, start=2, sampled=1)
    assert floor.prompt_seconds(8, cached=2) == pytest.approx(prompt.operations / 1e3)
    assert floor.copy_seconds(500) == pytest.approx(2 * 500 / 1e6)


def test_there_is_no_floor_before_the_limits_are_measured() -> None:
    floor = CpuFloor(SMALL, "fp32", np.zeros(64, np.uint8))
    assert floor.prompt_seconds(8, 0) is None and floor.answer_seconds(1, 8, 1) is None
    assert NO_FLOOR.prompt_seconds(8, 0) is None and NO_FLOOR.copy_seconds(1) is None


def test_a_worker_measures_only_while_it_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.model.floor.FIRST_SECONDS", 0.0)
    monkeypatch.setattr("engine.model.floor.AGAIN_SECONDS", 0.0)
    floor, answers, measured = CpuFloor(SMALL, "fp32", np.zeros(64, np.uint8)), [True, False, True, False, False], []
    monkeypatch.setattr(floor, "measure", lambda: measured.append(len(answers)))
    asyncio.run(floor.measure_when_idle(lambda: answers.pop(0)))
    assert measured == [3, 1, 0]


def test_the_limits_of_this_machine_can_be_measured() -> None:
    memory = np.zeros(1 << 20, np.uint8)
    first = -memory.__array_interface__["data"][0] % 64
    floor = CpuFloor(SMALL, "fp32", memory[first:])
    floor.measure()
    assert floor.read_bytes_per_second > 0 and floor.operations_per_second > 0
