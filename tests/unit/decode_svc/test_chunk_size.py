"""Chunks of prompts are cut so that a step stays below the target, by what steps were measured to take."""

from itertools import chain, combinations, pairwise
from random import Random

import numpy as np
import pytest

from decode_svc.chunk_size import FIRST_ROWS, LEAST_ROWS, ChunkSize
from decode_svc.step_cost import StepCost, _fitted

TARGET_MS = 80.0
IDLE, BUSY = 0, 16  # requests that decode


def step(decoding: int, prompt: int) -> float:
    """The true time of a step."""
    return 0.012 + 0.0006 * decoding + 0.0022 * prompt


def after(steps: int, chunk: ChunkSize, decoding: int = BUSY, noise: float = 0.0) -> list[float]:
    """Run so many steps as the sizes say, and return what they took."""
    random, took = Random(1), list[float]()
    for _ in range(steps):
        rows = chunk.rows(decoding)
        took.append(step(decoding, rows) * random.uniform(1 - noise, 1 + noise))
        chunk.measure(decoding, rows, took[-1])
    return took


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_steps_come_near_the_target_and_stay_below_it(noise: float) -> None:
    took = after(300, ChunkSize(chunk_tokens=256, itl_target_ms=TARGET_MS), noise=noise)
    assert sum(each > TARGET_MS / 1000 for each in took) <= 3
    assert sum(took[50:]) / len(took[50:]) > (0.75 - noise) * TARGET_MS / 1000
    assert max(after(300, ChunkSize(chunk_tokens=256, itl_target_ms=0))) > 0.5, "negative control: no target"


def test_the_first_chunks_are_small_and_grow() -> None:
    chunk = ChunkSize(chunk_tokens=256, itl_target_ms=10_000.0)
    sizes = list[int]()
    for _ in range(6):
        sizes.append(chunk.rows(BUSY))
        chunk.measure(BUSY, sizes[-1], step(BUSY, sizes[-1]))
    assert sizes[0] == FIRST_ROWS and sizes == sorted(sizes) and sizes[-1] == 256
    assert all(after <= 2 * before for before, after in pairwise(sizes))


def test_a_step_beside_which_nobody_decodes_keeps_to_the_target_too() -> None:
    """A request that lands meanwhile would wait for it."""
    chunk = ChunkSize(chunk_tokens=256, itl_target_ms=TARGET_MS)
    took = after(100, chunk, IDLE)
    assert 0.75 * TARGET_MS / 1000 < took[-1] <= TARGET_MS / 1000
    after(50, chunk)
    assert chunk.rows(BUSY) < chunk.rows(IDLE) < 40


def test_prompts_go_on_where_the_decode_rows_alone_miss_the_target() -> None:
    chunk, decoding = ChunkSize(chunk_tokens=256, itl_target_ms=5.0), 64
    took = after(100, chunk, decoding)
    assert chunk.rows(decoding) >= LEAST_ROWS and max(took[20:]) <= 2.2 * step(64, 0)


def test_prompts_that_wait_lengthen_a_step_each_by_half_of_the_target_and_by_no_more_than_three_halves() -> None:
    chunk = ChunkSize(chunk_tokens=256, itl_target_ms=TARGET_MS)
    after(300, chunk, noise=0.05)
    chunk.measure(IDLE, 128, step(IDLE, 128))  # no step has more than twice the rows of the largest
    rows = [chunk.rows(BUSY, behind) for behind in (0, 1, 2, 3, 100)]
    assert rows[0] < rows[1] < rows[2] < rows[3] == rows[4]
    assert 1.2 * TARGET_MS < 1000 * step(BUSY, rows[1]) <= 1.5 * TARGET_MS
    assert 2.1 * TARGET_MS < 1000 * step(BUSY, rows[4]) <= 2.5 * TARGET_MS
    slow = ChunkSize(chunk_tokens=256, itl_target_ms=5.0)
    after(100, slow, 64)
    slow.measure(64, 128, step(64, 128))
    assert 3.0 * step(64, 0) < step(64, slow.rows(64, 1000)) <= 3.7 * step(64, 0), "a target that is missed already"


@pytest.mark.parametrize(("fixed", "row"), [(0.095, 0.0018), (0.035, 0.0011), (0.02, 0.0007)])
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_under_a_steady_load_chunks_keep_their_size(fixed: float, row: float, noise: float) -> None:
    """Sixteen clients, each of which asks anew as soon as it is answered. Steps become all alike and tell nothing of
    their parts; a fixed part that drains into that of prompts would shrink chunks, and with them the variety of steps,
    down to the least."""
    chunk, random, sizes = ChunkSize(chunk_tokens=512, itl_target_ms=TARGET_MS), Random(1), list[int]()
    left, answers = [256] * 16, [64] * 16
    for _ in range(2000):
        decoding = left.count(0)
        budget = chunk.rows(decoding)
        read = 0
        for number, tokens in enumerate(left):
            if tokens:
                read += (taken := min(tokens, budget - read))
                left[number] -= taken
            else:
                answers[number] -= 1
                if not answers[number]:
                    left[number], answers[number] = 256, 64
        seconds = (fixed + 0.0006 * decoding + row * read) * random.uniform(1 - noise, 1 + noise)
        chunk.measure(decoding, read, seconds)
        if read:
            alone = fixed + 0.0006 * decoding
            sizes.append(int(budget * row / max(TARGET_MS / 1000 - alone, alone) * 100))  # percent of the room
    assert len(sizes) > 500
    assert min(sizes[100:]) > 50 and 75 < sum(sizes[100:]) / len(sizes[100:]) <= 115


def test_the_speed_of_prompts_falls_with_the_batch_and_is_unknown_without_a_target() -> None:
    chunk = ChunkSize(chunk_tokens=256, itl_target_ms=TARGET_MS)
    first = FIRST_ROWS / (TARGET_MS / 1000)
    assert chunk.tokens_per_second(IDLE) == chunk.tokens_per_second(BUSY) == first, "nothing is measured yet"
    after(100, chunk)
    busy = chunk.tokens_per_second(BUSY)
    assert 250 < busy < 0.9 * chunk.tokens_per_second(IDLE)
    fixed = ChunkSize(chunk_tokens=256, itl_target_ms=0)
    assert fixed.tokens_per_second(IDLE) == 0.0
    after(100, fixed)
    assert fixed.tokens_per_second(BUSY) == 0.0


def test_the_parts_of_a_step_are_told_apart_and_one_freeze_changes_little() -> None:
    cost, random = StepCost(), Random(2)
    for _ in range(200):
        decoding, prompt = random.randrange(20), random.choice((0, 0, 10, 30))
        cost.measure(decoding, prompt, step(decoding, prompt))
    for rows in ((0, 0), (16, 0), (16, 30), (1, 100)):
        assert cost.seconds(*rows) == pytest.approx(step(*rows), rel=0.1, abs=0.002)
    cost.measure(16, 10, 30.0)
    assert cost.seconds(16, 0) < 2 * step(16, 0)


def test_equal_steps_say_nothing_of_their_parts_and_are_divided_by_rows() -> None:
    cost = StepCost()
    for _ in range(100):
        cost.measure(16, 0, 0.032)
    assert cost.seconds(16, 0) == pytest.approx(0.032, rel=0.05)
    assert cost.prompt_row_seconds == pytest.approx(0.002, rel=0.1)


def test_what_prompts_cost_is_kept_while_none_come() -> None:
    """A row of a prompt costs far less than an equal share of a step of few rows."""
    cost, random = StepCost(), Random(3)
    for number in range(40):
        cost.measure(8, 40 + number, 0.025 + 0.0006 * 8 + 0.0003 * (40 + number))
    assert cost.prompt_row_seconds == pytest.approx(0.0003, rel=0.3)
    for _ in range(1000):
        decoding = random.randrange(4, 13)
        cost.measure(decoding, 0, (0.025 + 0.0006 * decoding) * random.uniform(0.95, 1.05))
    assert cost.prompt_row_seconds == pytest.approx(0.0003, rel=0.5)


@pytest.mark.parametrize("seed", range(6))
def test_no_speed_is_beyond_what_was_measured(seed: int) -> None:
    """Steps whose time grows faster than their rows leave nothing for the fixed part."""
    chunk, random, fastest = ChunkSize(chunk_tokens=512, itl_target_ms=50.0), Random(seed), 0.0
    for _ in range(600):
        decoding, prompt = random.randrange(8, 33), 16 * (random.random() < 0.1)
        seconds = 0.003 + 0.0001 * decoding + 0.00001 * decoding**2 + 0.0001 * prompt
        chunk.measure(decoding, prompt, seconds * random.uniform(0.9, 1.1))
        fastest = max(fastest, chunk.tokens_per_second(IDLE))
    assert 1000 < fastest < 1e5


def test_a_part_that_would_be_negative_leaves_the_others_a_fit_of_their_own() -> None:
    cost, random = StepCost(), Random(4)
    for _ in range(300):
        decoding = random.randrange(8, 33)
        cost.measure(decoding, 0, 0.00001 * decoding**2)
    assert cost.seconds(20, 0) == pytest.approx(0.004, rel=0.4)


def test_what_seemed_to_cost_nothing_is_learnt_when_it_comes_alone() -> None:
    """Steps with prompts were shorter by chance, so their rows seem free: no step is cut down to that expectation."""
    cost = StepCost()
    for number in range(200):
        decoding, prompt = 8 + number % 17, 16 * (number % 2)
        cost.measure(decoding, prompt, 0.001 * decoding - 0.00025 * prompt)
    assert cost.seconds(0, 16) < 0.002
    for _ in range(20):
        cost.measure(0, 16, 0.05)
    assert cost.seconds(0, 16) == pytest.approx(0.05, rel=0.4)


def test_after_steps_that_cost_nothing_the_truth_is_learnt_soon() -> None:
    cost = StepCost()
    for _ in range(50):
        cost.measure(16, 0, 0.0)
    for _ in range(20):
        cost.measure(0, 16, 0.05)
    assert cost.seconds(0, 16) == pytest.approx(0.05, rel=0.3)


@pytest.mark.parametrize("seed", range(50))
def test_the_parts_of_a_step_are_those_that_fit_best_of_all_without_a_negative_one(seed: int) -> None:
    """Each choice of parts that are not 0 is solved here as a system of equations."""
    random = Random(seed)
    true = [random.choice((0.0, part)) for part in (0.01, 0.0004, 0.0002)]
    steps = np.array([[1.0, random.randint(0, 16), random.choice((0, random.randint(1, 512)))] for _ in range(40)])
    took = steps @ true * [random.uniform(0.5, 1.5) for _ in range(40)] + 0.001
    products, sums = steps.T @ steps, steps.T @ took
    doubt, known = 0.4, (0.002, 0.0003, 0.0001)
    upper = products[np.triu_indices(3)].tolist()
    fitted = _fitted((*upper,), (*sums.tolist(),), doubt=doubt, known=known)
    products, sums = products + doubt * np.eye(3), sums + doubt * np.array(known)
    found = list[tuple[float, tuple[float, ...]]]()
    for free in map(list, chain.from_iterable(combinations(range(3), count) for count in (1, 2, 3))):
        parts = np.zeros(3)
        parts[free] = np.linalg.solve(products[np.ix_(free, free)], sums[free])
        if (parts >= 0).all():
            found.append((float(parts @ products @ parts - 2 * sums @ parts), tuple(parts)))
    assert fitted == pytest.approx(min(found)[1], rel=1e-6, abs=1e-12)
