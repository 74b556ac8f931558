"""A step that fails ends only the pieces that fail alone; the bits of the others do not change."""

import asyncio
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.builtin import tiny
from engine.pool.isolation import OVERFLOW, PROBE_KEY, Isolation
from engine.pool.pages import PagePool
from engine.step.plan import OnLayers, Piece, Plan, Result, RowsReport, Sampled
from mesh.messages.jobs import Sampling


def row(key: int, token: int, pages: tuple[int, ...] = (0,), *, follows: bool = False) -> Piece:
    return Piece(key, (token,), 0, pages, 1, 0, Sampling(), follows=follows)


class FailingRunner:
    """Samples the token behind each token; a step with a bad token fails, and so does one with too many pieces."""

    layers, ahead = 1, False

    def __init__(self, *, bad: tuple[int, ...] = (), most: int = 100) -> None:
        self.bad, self.most, self.plans = bad, most, list[Plan]()

    async def run(self, plan: Plan, on_layers: OnLayers | None = None) -> Result:
        self.plans.append(plan)
        if on_layers is not None:
            on_layers(0, 1)
        if len(plan.pieces) > self.most or any(token in self.bad for piece in plan.pieces for token in piece.tokens):
            raise ArithmeticError(f"step {plan.step}")
        return Result(tuple((Sampled(piece.tokens[-1] + 1, 0.0),) for piece in plan.pieces))


async def computed(runner: FailingRunner, plan: Plan, pages: PagePool | None = None) -> Result:
    isolation = Isolation(runner, pages or PagePool(4))
    return await isolation.result(plan, runner.run(plan))


@pytest.mark.parametrize("bad", [(3,), (0,), (9,), (1, 2), (0, 5, 9)])
async def test_only_the_pieces_that_fail_alone_have_a_fault(bad: tuple[int, ...]) -> None:
    plan = Plan(1, tuple(row(100 + token, token) for token in range(10)))
    result = await computed(FailingRunner(bad=bad), plan)
    assert [token for token, fault in enumerate(result.faults) if fault] == list(bad)
    assert [bool(sampled) for sampled in result.sampled] == [token not in bad for token in range(10)]
    assert all(sampled[0].token == token + 1 for token, sampled in enumerate(result.sampled) if sampled)
    assert "ArithmeticError" in next(filter(None, result.faults))


async def test_a_bad_piece_costs_a_few_steps_and_not_one_for_each_piece() -> None:
    runner = FailingRunner(bad=(40,))
    await computed(runner, Plan(1, tuple(row(token, token) for token in range(64))))
    assert len(runner.plans) <= 1 + 2 * 6


async def test_a_step_that_fails_as_a_whole_only_harms_nobody() -> None:
    result = await computed(FailingRunner(most=5), Plan(1, tuple(row(token, token) for token in range(10))))
    assert not any(result.faults) and all(result.sampled)


async def test_each_copy_is_made_with_the_part_that_writes_to_it() -> None:
    runner = FailingRunner(bad=(1,))
    plan = Plan(1, tuple(row(key, key, (key,)) for key in range(4)), copies=((7, 0), (7, 3)))
    await computed(runner, plan)
    for part in runner.plans[1:]:
        assert part.copies == tuple(
            copy for copy in plan.copies if copy[1] in {piece.pages[0] for piece in part.pieces}
        )


async def test_a_worker_that_computes_nothing_proves_itself_or_raises() -> None:
    pages, plan = PagePool(4), Plan(1, (row(1, 5), row(2, 6)))
    runner = FailingRunner(bad=(5, 6))
    result = await computed(runner, plan, pages)
    assert all(result.faults) and runner.plans[-1].pieces[0].key == PROBE_KEY
    with pytest.raises(ArithmeticError):
        await computed(FailingRunner(most=0), plan, pages)
    assert pages.counts().free == 4, "the page of the trial is back"


@pytest.mark.parametrize("bad", [(0,), (2, 3)])
async def test_pieces_whose_numbers_overflow_fail_without_a_second_step(bad: tuple[int, ...]) -> None:
    class OverflowingRunner(FailingRunner):
        async def run(self, plan: Plan, on_layers: OnLayers | None = None) -> Result:
            result = await super().run(plan, on_layers)
            rows = zip(plan.pieces, result.sampled, strict=True)
            sampled = tuple((Sampled(0, nan),) if piece.tokens[0] in bad else drawn for piece, drawn in rows)
            return replace(result, sampled=sampled)

    runner = OverflowingRunner()
    result = await computed(runner, Plan(1, tuple(row(10 + token, token) for token in range(5))))
    assert [token for token, fault in enumerate(result.faults) if fault == OVERFLOW] == list(bad)
    assert [len(sampled) for sampled in result.sampled] == [int(token not in bad) for token in range(5)]
    assert len(runner.plans) == 1


async def test_a_wrong_draft_that_overflows_harms_nobody() -> None:
    class WrongDraftRunner(FailingRunner):
        async def run(self, plan: Plan, on_layers: OnLayers | None = None) -> Result:
            return Result(((Sampled(4, -0.5), Sampled(0, nan)),))

    piece = Piece(1, (3, 9), 0, (0,), 2, 0, Sampling())
    result = await computed(WrongDraftRunner(), Plan(1, (piece,)))
    assert not any(result.faults) and result.sampled[0][0].token == 4


@pytest.mark.parametrize(
    ("report", "overflows"),
    [
        (RowsReport(logprobs=np.array([-1, -np.inf], "<f4").tobytes()), False),
        (RowsReport(logprobs=np.array([-1, nan], "<f4").tobytes()), True),
        (RowsReport(pooled=np.array([1, 2], "<f4").tobytes()), False),
        (RowsReport(pooled=np.array([1, np.inf], "<f4").tobytes()), True),
    ],
)
async def test_a_report_on_rows_that_overflow_is_none(report: RowsReport, overflows: bool) -> None:
    class ReportingRunner(FailingRunner):
        async def run(self, plan: Plan, on_layers: OnLayers | None = None) -> Result:
            return Result(((), ()), reports=(report, None))

    plan = Plan(1, (replace(row(1, 1), sampled=0, sampling=None), row(2, 2)))
    result = await computed(ReportingRunner(), plan)
    assert result.faults == ((OVERFLOW, "") if overflows else ())


async def test_a_step_launched_behind_a_failing_one_is_computed_again_with_the_right_tokens() -> None:
    runner = FailingRunner(bad=(5,))
    isolation = Isolation(runner, PagePool(4))
    first = Plan(1, tuple(row(key, token) for key, token in ((1, 3), (2, 5), (3, 6))))
    behind = Plan(2, tuple(row(key, 0, follows=True) for key in (1, 2, 3)))
    flights = [asyncio.ensure_future(runner.run(plan)) for plan in (first, behind)]
    one, two = [await isolation.result(plan, flight) for plan, flight in zip((first, behind), flights, strict=True)]
    assert [bool(fault) for fault in one.faults] == [False, True, False]
    assert [sampled and sampled[0].token for sampled in two.sampled] == [5, (), 8] and not any(two.faults)
    assert {piece.tokens for piece in runner.plans[-1].pieces} == {(4,), (7,)}
    third = Plan(3, (row(1, 9),))
    count = len(runner.plans)
    assert (await isolation.result(third, runner.run(third))).faults == () and len(runner.plans) == count + 1


async def test_layers_are_reported_with_the_part_that_computed_them() -> None:
    runner, seen = FailingRunner(bad=(1,)), list[tuple[int, ...]]()
    isolation = Isolation(runner, PagePool(4))
    plan = Plan(1, tuple(row(key, key) for key in range(3)))
    await isolation.run(plan, lambda part, first, layers: seen.append(tuple(piece.key for piece in part.pieces)))
    assert seen[0] == (0, 1, 2) and (0,) in seen and (2,) in seen


async def test_the_real_engine_gives_the_innocent_pieces_the_bits_they_have_without_the_bad_one(
    tmp_path: Path, engine: Any, words: Any
) -> None:
    folder = tiny(tmp_path / "model", "qwen3", dtype="bf16")
    sampling = Sampling(temperature=0.8, seed=3, top_logprobs=4)
    prompts = [words(count, count) for count in (5, 40, 33, 64, 1)]

    def pieces(bad: int | None) -> tuple[Piece, ...]:
        found = []
        for key, prompt in enumerate(prompts):
            tokens = tuple(prompt) if key != bad else (*prompt[:-1], 70_000)
            found.append(Piece(key, tokens, 0, (4 * key, 4 * key + 1, 4 * key + 2), 1, 0, sampling))
        return tuple(found)

    good, spoilt = engine(folder), engine(folder)
    expected = good.runner.compute(Plan(1, pieces(None))).sampled
    isolation = Isolation(spoilt.runner, PagePool(4))
    result = await isolation.run(Plan(1, pieces(2)), lambda part, first, layers: None)
    assert [bool(fault) for fault in result.faults] == [False, False, True, False, False]
    assert [sampled for key, sampled in enumerate(result.sampled) if key != 2] == [
        sampled for key, sampled in enumerate(expected) if key != 2
    ]
    decode = [
        Piece(key, (expected[key][0].token,), len(prompts[key]), (4 * key, 4 * key + 1, 4 * key + 2), 1, 1, sampling)
        for key in (0, 1, 3, 4)
    ]
    assert spoilt.runner.compute(Plan(2, tuple(decode))).sampled == good.runner.compute(Plan(2, tuple(decode))).sampled
