"""Baton beside its peers: turns count only between equal limits, and an engine that cannot compute is named."""

import asyncio
import sys
from collections.abc import Iterator
from itertools import chain, cycle, repeat
from pathlib import Path

import pytest

from bench.peers.__main__ import add
from bench.peers.engines import EngineFailed, EngineProcess, Generation
from bench.peers.programs.asked import prompt_of
from bench.peers.turns import POINTS, Comparison, best_peer, compare, speed
from bench.roofline_limits import MachineLimits, Meter

DECODE = POINTS["decode_b8"]


class FixedPace(EngineProcess):
    """An engine that takes so long for a prompt's token, and for a step."""

    def __init__(self, name: str, prompt_seconds: float, step_seconds: float) -> None:
        self.name, self._prompt, self._step = name, prompt_seconds, step_seconds

    async def seconds(self, wanted: Generation) -> float:
        return wanted.rows * wanted.prompt * self._prompt + (wanted.tokens - 1) * self._step


class GivenLimits(Meter):
    def __init__(self, reads: Iterator[float]) -> None:
        self._reads = reads

    def limits(self) -> MachineLimits:
        return MachineLimits(next(self._reads), 1e12)


def compared(reads: Iterator[float], most: int = 4) -> Comparison:
    ours, peer = FixedPace("Baton", 0.001, 0.02), FixedPace("other", 0.001, 0.03)
    return asyncio.run(compare(ours, peer, DECODE, turns=2, most=most, meter=GivenLimits(reads)))


def test_speed_is_that_of_a_prompt_or_of_the_tokens_behind_the_first() -> None:
    engine = FixedPace("Baton", 0.001, 0.02)
    assert asyncio.run(speed(engine, POINTS["prefill_512"])) == pytest.approx(1000.0)
    assert asyncio.run(speed(engine, DECODE)) == pytest.approx(8 / 0.02)


def test_a_turn_counts_only_between_equal_limits() -> None:
    assert compared(repeat(36e9)).ratio.median == pytest.approx(1.5)
    moved = compared(chain([36e9, 36e9, 62e9], repeat(62e9)))
    assert (moved.dropped, len(moved.ours)) == (1, 2) and moved.ratio.low == pytest.approx(1.5)
    between = compared(chain([36e9, 62e9], repeat(62e9)))
    assert between.dropped == 1
    never = compared(cycle([36e9, 62e9]))
    assert never.dropped == 4 and not never.ours and "no turn counts" in str(never)


def test_the_report_compares_with_the_peer_that_comes_closest() -> None:
    slow, fast = Comparison("slow", [30.0], [10.0]), Comparison("fast", [30.0], [20.0])
    never, own = Comparison("never", dropped=3), Comparison("Baton on vLLM's file", [30.0], [40.0])
    assert best_peer([slow, fast, never]) is fast and best_peer([never]) is None
    report: dict[str, dict[str, object]] = {k: {} for k in ("ratio_to_best_peer", "best_peer", "spread", "dropped")}
    add(report | {"points": (points := [])}, "int8", "decode_b8", [slow, fast, never, own])
    assert report["ratio_to_best_peer"] == {"decode_b8_int8": 1.5} and report["best_peer"] == {"decode_b8_int8": "fast"}
    assert [point["engine"] for point in points] == ["slow", "fast", "Baton", "Baton on vLLM's file"]


def process(folder: Path, program: str) -> EngineProcess:
    (folder / "program.py").write_text(program)
    return EngineProcess("an engine", (sys.executable, str(folder / "program.py")), folder, {})


def test_an_engine_that_ends_is_named_with_what_it_wrote(tmp_path: Path) -> None:
    async def start(program: str) -> float:
        async with process(tmp_path, program) as engine:
            assert engine.version == "3"
            return await engine.seconds(DECODE)

    with pytest.raises(EngineFailed, match=r"an engine ended: .*no such scheme"):
        asyncio.run(start("raise SystemExit('no such scheme')"))
    answers = (
        "print('a bar 3%'); print('{\"version\": 3}', flush=True); input(); print('{\"seconds\": 0.5}', flush=True)"
    )
    assert asyncio.run(start(answers)) == 0.5


def test_prompts_differ_and_hold_no_special_tokens() -> None:
    first, second = prompt_of(1, 512, 1000), prompt_of(2, 512, 1000)
    assert len(first) == 512 and first != second and all(250 <= token < 750 for token in first + second)
