"""The runner as the event loop sees it."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.builtin import ensure_random, tiny
from engine.cpu.runner import CpuRunner
from engine.model.page_memory import layer_bytes
from engine.model.weights import open_weights
from engine.step.plan import Piece, Plan, Result
from mesh.messages.jobs import Sampling

Words = Callable[..., list[int]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny(tmp_path / "model", "llama2", dtype="bf16", layers=5)


@pytest.mark.parametrize(
    ("group", "expected"), [(1, [(0, 1), (1, 1), (2, 1), (3, 1), (4, 1)]), (None, [(0, 2), (2, 2), (4, 1)])]
)
def test_layer_groups_reach_the_event_loop_in_order_before_the_result(
    group: int | None, expected: list[tuple[int, int]], folder: Path, engine: Any, words: Words
) -> None:
    ours = engine(folder, layer_group=group)
    events: list[tuple[int, int]] = []

    async def main() -> Result:
        home = threading.get_ident()

        def on_layers(first: int, count: int) -> None:
            assert threading.get_ident() == home
            events.append((first, count))

        result: Result = await ours.runner.run(Plan(0, (ours.piece(words(40), sampled=1),)), on_layers)
        assert events == expected
        return result

    assert len(asyncio.run(main()).sampled[0]) == 1


def test_steps_of_few_rows_report_their_layers_in_fewer_and_larger_groups(
    tmp_path: Path, engine: Any, words: Words
) -> None:
    ours = engine(tiny(tmp_path / "deep", "llama2", dtype="bf16", layers=24))
    few, many = ours.runner.layer_group(1), ours.runner.layer_group(1 << 20)
    assert (few, many) == (12, 6)
    events: list[tuple[int, int]] = []

    async def main() -> None:
        piece = ours.piece(words(4), sampled=1)
        await ours.runner.run(Plan(0, (piece,)), lambda first, count: events.append((first, count)))

    asyncio.run(main())
    assert events == [(0, 12), (12, 12)]


@pytest.mark.parametrize("sampled", [0, 1, 40])
def test_a_layer_is_final_in_its_pages_when_it_is_reported(
    sampled: int, folder: Path, engine: Any, words: Words
) -> None:
    ours = engine(folder, table=(3, 1))
    size = ours.runner.layer_bytes
    seen: dict[int, bytes] = {}

    def layer(index: int) -> bytes:
        return b"".join(ours.pool[page * ours.runner.page_bytes + index * size :][:size].tobytes() for page in (3, 1))

    def on_layers(first: int, count: int) -> None:
        seen.update({index: layer(index) for index in range(first, first + count)})

    ours.runner.compute(Plan(0, (ours.piece(words(40), sampled=sampled),)), on_layers)
    assert sorted(seen) == list(range(5))
    assert all(seen[index] == layer(index) for index in seen)
    assert all(value != b"\xff" * len(value) for value in seen.values())


def test_rows_that_are_not_sampled_leave_the_same_pages(folder: Path, engine: Any, words: Words) -> None:
    silent, loud = engine(folder), engine(folder)
    silent.runner.compute(Plan(0, (silent.piece(words(50), sampled=0),)))
    loud.runner.compute(Plan(0, (loud.piece(words(50)),)))
    assert (silent.pool == loud.pool).all()


def test_only_the_pages_of_the_plan_are_written(folder: Path, engine: Any, words: Words) -> None:
    ours = engine(folder, table=(5, 9))
    ours.runner.compute(Plan(0, (ours.piece(words(64)),)))
    pages = ours.pool.reshape(ours.pool_pages, -1)
    touched = {page for page in range(ours.pool_pages) if (pages[page] != 0xFF).any()}
    assert touched == {5, 9}


def test_plans_run_in_order_and_control_goes_on_meanwhile(folder: Path, engine: Any, words: Words) -> None:
    ours = engine(folder, layer_group=1)
    order: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        first = ours.runner.run(Plan(0, (ours.piece(words(400), sampled=1),)), lambda a, b: order.append("layers"))
        second = ours.runner.run(Plan(1, (ours.piece(words(1), 400),)))
        loop.call_soon(order.append, "control")
        first.add_done_callback(lambda _: order.append("first"))
        second.add_done_callback(lambda _: order.append("second"))
        await asyncio.gather(first, second)
        await asyncio.sleep(0)

    asyncio.run(main())
    assert order.index("control") < order.index("first")
    assert [event for event in order if event != "control"] == ["layers"] * 5 + ["first", "second"]


def test_a_plan_of_copies_only_copies(folder: Path, engine: Any, words: Words) -> None:
    ours = engine(folder)
    ours.logits(words(32))
    assert ours.runner.compute(Plan(0, (), copies=((0, 7),))) == Result(())
    pages = ours.pool.reshape(ours.pool_pages, -1)
    assert (pages[0] == pages[7]).all() and (pages[0] != 0xFF).any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": (1, 262)}, "token 262"),
        ({"tokens": (-1, 2)}, "token -1"),
        ({"tokens": (1 << 40, 2)}, "token"),
        ({"pages": (24,)}, "pages"),
        ({"pages": (-1,)}, "pages"),
        ({"pages": ()}, "beyond its 0 pages"),
        ({"start": 31}, "beyond its 1 pages"),
        ({"start": 511, "pages": tuple(range(17))}, "context"),
    ],
)
def test_a_plan_that_would_touch_foreign_memory_is_refused_untouched(
    change: dict[str, Any], message: str, folder: Path, engine: Any
) -> None:
    ours = engine(folder)
    fields: dict[str, Any] = {"key": 4, "tokens": (1, 2), "start": 0, "pages": (0,)}
    with pytest.raises(ValueError, match=message):
        ours.runner.compute(Plan(0, (Piece(**(fields | change)),), copies=((0, 1),)))
    with pytest.raises(ValueError, match="copies page"):
        ours.runner.compute(Plan(0, (), copies=((0, 24),)))
    assert (ours.pool == 0xFF).all()


def test_an_error_of_one_plan_reaches_its_caller_and_the_next_plan_runs(folder: Path, engine: Any) -> None:
    ours = engine(folder)

    async def main() -> int:
        with pytest.raises(ValueError):
            await ours.runner.run(Plan(0, (ours.piece([999]),)))
        return len((await ours.runner.run(Plan(1, (ours.piece([5]),)))).sampled)

    assert asyncio.run(main()) == 1


def test_a_pool_of_broken_pages_is_refused(folder: Path, tmp_path: Path) -> None:
    weights = open_weights(folder, tmp_path / "cache")
    size = layer_bytes(weights, 32) * 5
    for pool in (bytearray(size + 1), bytearray(0), memoryview(bytes(size))):
        with pytest.raises(ValueError, match="whole pages"):
            CpuRunner(weights, pool_buffer=pool, page_tokens=32, threads=1)


def test_the_page_shape_is_what_the_layout_says(folder: Path, engine: Any) -> None:
    ours = engine(folder, page_tokens=16)
    assert ours.runner.shape.segments[0].tiles == "pairs-v1" and ours.runner.layers == 5
    assert ours.runner.layer_bytes == 2 * 4 * 16 * 16 * 2
    assert ours.runner.page_bytes == 5 * ours.runner.layer_bytes


def test_the_random_model_babbles_differently_after_different_prompts(tmp_path: Path, engine: Any) -> None:
    folder = ensure_random(tmp_path)
    ours = engine(folder)
    said = []
    for prompt in (b"Hello", b"Hello!", b"What is a baton?"):
        ours.pool[:] = 0xFF
        said.append([one.token for one in ours.generate(list(prompt), 64)])
    assert len({tuple(one) for one in said}) == 3
    for one in said:
        assert len(set(one)) >= 16 and sum(0x20 <= token < 0x7F for token in one) >= 60
    seeded = [one.token for one in ours.generate(list(b"Hello"), 64, Sampling(temperature=1.0, seed=1))]
    assert seeded != said[0] and np.mean([0x20 <= token < 0x7F for token in seeded]) > 0.8
