"""The GPU's runner computes what transformers does, and the same bits in whatever batch, chunks or order."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from engine.step.plan import Piece, Plan, Result
from mesh.messages.jobs import Sampling

Build = Callable[..., Any]
SEEDED = Sampling(temperature=0.8, seed=11, top_logprobs=3)
FILTERED = Sampling(temperature=0.8, top_k=40, top_p=0.9, seed=11)


def words(count: int, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 262, count)]


def bits(values: Any) -> bytes:
    return np.ascontiguousarray(values).tobytes()


@pytest.mark.parametrize("family", ["llama3", "qwen2", "qwen3"])
def test_logits_are_near_those_of_transformers(family: str, engine: Build, folder: Any) -> None:
    ours, prompt = engine(family), words(18)
    logits = ours.runner.compute_logits(Plan(0, (ours.piece(prompt),)))[0]
    kind = transformers.AutoModelForCausalLM
    theirs = kind.from_pretrained(folder(family), dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        wanted = theirs(torch.tensor([prompt])).logits[0].numpy()
    error = np.linalg.norm(logits - wanted) / np.linalg.norm(wanted)
    assert error < 2e-2, error


def test_a_prompt_in_chunks_gives_the_bits_of_one_in_one_step(engine: Build) -> None:
    prompt = words(20)  # more rows than a step's attention splits: as one it takes the other way
    whole, parts = engine(), engine()
    wanted = whole.runner.compute_logits(Plan(0, (whole.piece(prompt, sampled=1),)))[0]
    parts.step(parts.piece(prompt[:7], sampled=0))
    parts.step(parts.piece(prompt[7:18], 7, sampled=0))
    found = parts.runner.compute_logits(Plan(0, (parts.piece(prompt[18:], 18, sampled=1),)))[0]
    assert bits(found) == bits(wanted)


def test_a_request_gets_its_bits_in_any_batch_and_beside_a_prompt(engine: Build) -> None:
    prompts = [words(5, 1), words(3, 2), words(18, 3)]
    alone = []
    for key, prompt in enumerate(prompts):
        one = engine()
        first = one.step(_prompt(one, key, prompt, FILTERED))[0]
        second = one.step(_next(one, key, prompt, first[0].token))[0]
        alone.append((first, second))
    together = engine()
    first = together.step(*(_prompt(together, key, prompt, FILTERED) for key, prompt in enumerate(prompts)))
    pieces = [_next(together, key, prompt, first[key][0].token) for key, prompt in enumerate(prompts)]
    other = together.piece(words(17, 9), key=9, sampled=0, pages=tuple(range(20, 24)))
    second = together.step(pieces[2], other, pieces[0], pieces[1])
    assert [first[key] for key in range(3)] == [one[0] for one in alone]
    assert [second[2], second[3], second[0]] == [one[1] for one in alone]
    assert second[1] == ()


def _pages(key: int) -> tuple[int, ...]:
    return tuple(range(key * 5, key * 5 + 5))


def _prompt(engine: Any, key: int, prompt: list[int], sampling: Sampling = SEEDED) -> Piece:
    return engine.piece(prompt, key=key, sampled=1, sampling=sampling, pages=_pages(key))  # type: ignore[no-any-return]


def _next(engine: Any, key: int, prompt: list[int], token: int, **more: Any) -> Piece:
    fields = {"key": key, "sampling": SEEDED, "pages": _pages(key), "position": 1} | more
    return engine.piece([token], len(prompt), **fields)  # type: ignore[no-any-return]


def test_verified_drafts_yield_the_tokens_and_logprob_bits_of_single_steps(engine: Build) -> None:
    prompt, plain = words(6, 4), engine()
    said = list(plain.step(_prompt(plain, 0, prompt))[0])
    for position in range(1, 5):
        piece = plain.piece([said[-1].token], 5 + position, key=0, sampling=SEEDED, pages=_pages(0), position=position)
        said += plain.step(piece)[0]
    drafted = engine()
    drafted.step(_prompt(drafted, 0, prompt))
    right = [one.token for one in said[:3]]
    wrong = (said[3].token + 1) % 262
    rows = drafted.piece([*right, wrong], 6, key=0, sampling=SEEDED, pages=_pages(0), position=1)
    found = drafted.step(rows)[0]
    assert found[:3] == tuple(said[1:4])
    again = drafted.piece([said[3].token], 9, key=0, sampling=SEEDED, pages=_pages(0), position=4)
    assert drafted.step(again)[0] == (said[4],)  # what the rejected draft left behind is written again


def test_a_plan_that_follows_is_launched_before_the_step_in_front_was_read(engine: Build) -> None:
    prompt, read, ahead = words(5, 5), engine(), engine()
    first = read.step(_prompt(read, 0, prompt))
    wanted = [first, read.step(_next(read, 0, prompt, first[0][0].token))]

    async def main() -> list[Result]:
        one = ahead.runner.run(Plan(0, (_prompt(ahead, 0, prompt),)))
        two = ahead.runner.run(Plan(1, (_next(ahead, 0, prompt, 0, follows=True),)))
        return [await one, await two]

    assert [result.sampled for result in asyncio.run(main())] == wanted


def test_a_piece_that_follows_nothing_is_refused(engine: Build) -> None:
    ours = engine()
    with pytest.raises(ValueError, match="follows a token"):
        ours.step(_next(ours, 0, words(4), 0, follows=True))
    assert len(ours.step(ours.piece(words(4), sampled=1))[0]) == 1


def test_stop_ids_are_masked_before_min_tokens_and_only_then(engine: Build) -> None:
    ours, prompt = engine(), words(5, 6)
    best = ours.step(ours.piece(prompt, sampled=1))[0][0].token
    masked = Sampling(min_tokens=1, stop_ids=(best,))
    assert ours.step(ours.piece(prompt, sampled=1, sampling=masked))[0][0].token != best
    assert ours.step(ours.piece(prompt, sampled=1, sampling=masked, position=1))[0][0].token == best


def test_layers_are_reported_in_order_and_before_the_result(engine: Build) -> None:
    ours, reported = engine(), list[Any]()

    async def main() -> None:
        plan = Plan(0, (ours.piece(words(5), sampled=1),))
        reported.append(await ours.runner.run(plan, lambda first, count: reported.append((first, count))))

    asyncio.run(main())
    assert reported[:-1] == [(0, 1), (1, 1)]
    assert isinstance(reported[-1], Result)


def test_pages_are_copied_before_anything_is_computed(engine: Build) -> None:
    ours, prompt = engine(), words(17, 7)
    ours.step(ours.piece(prompt, sampled=0, pages=(0, 1)))
    wanted = ours.runner.compute_logits(Plan(0, (ours.piece([5], 17, pages=(0, 1)),)))[0]
    ours.runner.compute(Plan(1, (), ((0, 8), (1, 9))))
    found = ours.runner.compute_logits(Plan(2, (ours.piece([5], 17, pages=(8, 9)),)))[0]
    assert bits(found) == bits(wanted)
    with pytest.raises(ValueError, match="copies page 3 to 99"):
        ours.runner.compute(Plan(3, (), ((3, 99),)))


def test_the_vendor_path_computes_the_same_numbers_within_rounding(engine: Build) -> None:
    ours, fast, prompt = engine(), engine(path="fast"), words(18, 8)
    exact = ours.runner.compute_logits(Plan(0, (ours.piece(prompt, sampled=4),)))[0]
    free = fast.runner.compute_logits(Plan(0, (fast.piece(prompt, sampled=4),)))[0]
    assert np.linalg.norm(free - exact) / np.linalg.norm(exact) < 2e-2


def test_pages_outside_the_plan_are_not_touched(engine: Build) -> None:
    ours = engine()
    ours.step(ours.piece(words(17), sampled=1, pages=(3, 5)))
    size = ours.runner.page_bytes
    for page in set(range(24)) - {3, 5}:
        assert (ours.pool[page * size : (page + 1) * size] == 0xFF).all(), page
