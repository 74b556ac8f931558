"""A request's rows have the same bits in whatever chunks, batches, pages and threads they are computed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import baton_kernels
from engine.builtin import tiny
from engine.step.plan import Piece, Plan
from mesh.messages.jobs import Sampling

PATHS = ("fp32", "pairs", "amx", "int8", "int4")
Words = Callable[..., list[int]]


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny(tmp_path / "model", "qwen3", dtype="bf16")


def bits(values: Any) -> Any:
    assert np.isfinite(values).all()
    return values.view(np.uint32)


@pytest.mark.parametrize("page_tokens", [16, 32, 64])
def test_chunks_and_page_sizes_do_not_change_a_bit(
    path: str, page_tokens: int, folder: Path, engine: Any, words: Words
) -> None:
    prompt = words(100)
    whole = bits(engine(folder, product_path=path).logits(prompt))
    for chunk in (1, 7, 16, None):
        again = engine(folder, product_path=path, page_tokens=page_tokens).logits(prompt, chunk=chunk)
        assert (bits(again) == whole).all(), f"chunk {chunk}"


def test_threads_do_not_change_a_bit(path: str, folder: Path, engine: Any, words: Words) -> None:
    prompt = words(100)
    single = bits(engine(folder, product_path=path, threads=1).logits(prompt))
    assert (bits(engine(folder, product_path=path, threads=4).logits(prompt)) == single).all()


def test_page_placement_does_not_change_a_bit(path: str, folder: Path, engine: Any, words: Words) -> None:
    prompt = words(100)
    plain = bits(engine(folder, product_path=path).logits(prompt))
    shuffled = engine(folder, product_path=path, table=(7, 2, 19, 5)).logits(prompt, chunk=33)
    assert (bits(shuffled) == plain).all()


def test_batch_composition_does_not_change_a_bit(path: str, folder: Path, engine: Any, words: Words) -> None:
    prompts = {1: words(70, 1), 2: words(1, 2), 3: words(45, 3)}
    alone = {key: bits(engine(folder, product_path=path).logits(prompt)) for key, prompt in prompts.items()}
    together = engine(folder, product_path=path)
    tables = {1: (0, 1, 2), 2: (3,), 3: (4, 5)}
    head = tuple(together.piece(prompts[key][:-1], key=key, sampled=0, pages=tables[key]) for key in (3, 1))
    assert together.runner.compute_logits(Plan(0, head))[0].shape == (0, 262)
    for order in ((1, 2, 3), (3, 2), (2, 1)):
        pieces = [together.piece(prompts[key][-1:], len(prompts[key]) - 1, key=key, pages=tables[key]) for key in order]
        for key, got in zip(order, together.runner.compute_logits(Plan(1, tuple(pieces))), strict=True):
            assert (bits(got) == alone[key][-1:]).all(), f"request {key} in {order}"


def test_prompts_and_decode_rows_in_one_step_have_the_bits_of_separate_steps(
    path: str, folder: Path, engine: Any, words: Words
) -> None:
    long, short = words(80, 4), words(40, 5)
    alone = bits(engine(folder, product_path=path).logits(long)), bits(engine(folder, product_path=path).logits(short))
    both = engine(folder, product_path=path)
    both.runner.compute(Plan(0, (both.piece(short[:39], key=2, sampled=0, pages=(10, 11)),)))
    first = both.piece(long[:50], key=1, sampled=0, pages=(0, 1))
    decode = both.piece(short[39:], 39, key=2, pages=(10, 11))
    rest = both.piece(long[50:], 50, key=1, sampled=3, pages=(0, 1, 2))
    assert (bits(both.runner.compute_logits(Plan(1, (first, decode)))[1]) == alone[1][-1:]).all()
    assert (bits(both.runner.compute_logits(Plan(2, (rest,)))[0]) == alone[0][-3:]).all()


@pytest.mark.parametrize("ffn", [176, 192])  # the latter in whole tiles
def test_layers_in_one_call_give_the_bits_of_single_kernels(
    ffn: int, tmp_path: Path, path: str, engine: Any, words: Words
) -> None:
    folder = tiny(tmp_path / "model", "qwen3", dtype="bf16", ffn=ffn)

    def handed_in(*arguments: Any, **more: Any) -> None:
        baton_kernels.product(*arguments, **more)

    prompt = words(90)
    expected = bits(engine(folder, product_path=path, product=handed_in).logits(prompt))
    assert (bits(engine(folder, product_path=path).logits(prompt)) == expected).all()
    assert (bits(engine(folder, product_path=path).logits(prompt, chunk=7)) == expected).all()


def test_a_product_that_splits_its_chain_by_the_batch_is_noticed(folder: Path, engine: Any, words: Words) -> None:
    """The control of all tests above: a product whose bits depend on the batch makes them fail."""

    def split(x: Any, packed: Any, out: Any, bias: Any = None, residual: Any = None) -> None:
        if len(x) == 1:
            baton_kernels.product(x, packed, out, bias, residual)
            return
        halves = [x.copy(), x.copy()]
        cut = x.shape[1] // 3  # in a half the tiles of `amx` would meet no sum of three
        halves[0][:, cut:], halves[1][:, :cut] = 0.0, 0.0
        parts = [np.empty_like(out), np.empty_like(out)]
        baton_kernels.product(halves[0], packed, parts[0])
        baton_kernels.product(halves[1], packed, parts[1], bias, residual)
        np.add(*parts, out=out)

    prompt = words(40)
    wrong = engine(folder, product=split)
    together, alone = bits(wrong.logits(prompt)), bits(wrong.logits(prompt, chunk=1))
    assert (together != alone).any()
    assert (alone == bits(engine(folder).logits(prompt))).all()


def test_rejected_drafts_are_rolled_back_without_a_trace(path: str, folder: Path, engine: Any, words: Words) -> None:
    tokens = words(60)
    plain = bits(engine(folder, product_path=path).logits(tokens))
    drafted = engine(folder, product_path=path)
    drafted.logits(tokens[:30])
    wrong = [(token + 1) % 262 for token in tokens[31:38]]
    verified = drafted.logits([tokens[30], *wrong], start=30)
    assert (bits(verified[:1]) == plain[30:31]).all()
    assert not (bits(verified[1:2]) == plain[31:32]).all()
    assert (bits(drafted.logits(tokens[31:], start=31, chunk=5)) == plain[31:]).all()


def test_a_copied_page_continues_alone(path: str, folder: Path, engine: Any, words: Words) -> None:
    tokens, other = words(60), words(8, 9)
    shared = engine(folder, product_path=path)
    plain = bits(shared.logits(tokens))
    branch = tokens[:50] + other
    fresh = bits(engine(folder, product_path=path).logits(branch))
    before = shared.pool.copy()
    piece = shared.piece(other, 50, pages=(0, 20))
    got = shared.runner.compute_logits(Plan(0, (piece,), copies=((1, 20),)))[0]
    assert (bits(got) == fresh[50:]).all()
    page = shared.runner.page_bytes
    assert (shared.pool[: 20 * page] == before[: 20 * page]).all()
    assert (bits(shared.logits(tokens[50:], start=50)) == plain[50:]).all()


def test_tokens_and_logprobs_of_a_request_are_equal_alone_and_in_a_crowd(
    path: str, folder: Path, engine: Any, words: Words
) -> None:
    def sampling_of(key: int) -> Sampling:
        return Sampling(
            temperature=[0.0, 0.7, 1.3][key % 3], top_k=[0, 20][key % 2], top_p=0.9, seed=key, top_logprobs=3
        )

    prompts = {key: words(5 + 3 * key, key) for key in range(6)}
    alone = {key: engine(folder, product_path=path).generate(prompts[key], 12, sampling_of(key)) for key in prompts}
    crowd = engine(folder, product_path=path, page_tokens=16)
    out: dict[int, list[Any]] = {key: [] for key in prompts}
    for step in range(12 + len(prompts)):
        pieces: list[Piece] = []
        for key in prompts:
            done = len(out[key])
            if step >= key and done < 12:  # request `key` joins in step `key`
                tokens = prompts[key] if done == 0 else [out[key][-1].token]
                start = 0 if done == 0 else len(prompts[key]) + done - 1
                table = tuple(range(4 * key, 4 * key + 4))
                more = {"position": done, "sampling": sampling_of(key), "pages": table}
                pieces.append(crowd.piece(tokens, start, key=key, sampled=1, **more))
        pieces.sort(key=lambda piece: (piece.key * 5 + step) % 7)
        result = crowd.runner.compute(Plan(step, tuple(pieces)))
        for piece, sampled in zip(pieces, result.sampled, strict=True):
            out[piece.key].extend(sampled)
    assert out == alone
