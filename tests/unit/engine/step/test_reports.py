"""Examined rows: a prompt's logprobs have the bits that decode gives the same tokens, and no chunk, batch or slice
changes a bit of them or of an embedding."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine.step.reports
from engine.builtin import tiny
from engine.step.plan import Drafting, Piece, Plan, RowsReport, Sampled, WantedRows
from engine.step.reports import add_rows, embedding, score
from mesh.messages.jobs import Pooling, Sampling

Words = Callable[..., list[int]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny(tmp_path / "model", "qwen3", dtype="bf16")


def scored(one: Any, prompt: Sequence[int], *, chunk: int, top: int = 3, beside: tuple[Piece, ...] = ()) -> RowsReport:
    """The prompt's scores, computed in chunks, each perhaps beside other pieces."""
    parts = []
    for first in range(0, len(prompt), chunk):
        stop = min(first + chunk, len(prompt))
        wanted = WantedRows(tuple(prompt[first + 1 : stop + 1]), top)
        piece = one.piece(prompt[first:stop], first, sampled=0, wanted=wanted)
        result = one.runner.compute(Plan(0, (*beside, piece)))
        assert [report is None for report in result.reports] == [True] * len(beside) + [False]
        parts.append(result.reports[-1])
    names = ("logprobs", "ranks", "top_ids", "top_logprobs")
    return RowsReport(*(b"".join(getattr(part, name) for part in parts) for name in names))


def pooled(one: Any, prompt: Sequence[int], pooling: Pooling, *, chunk: int, dimensions: int = 0) -> bytes:
    so_far = b""
    for first in range(0, len(prompt), chunk):
        stop = min(first + chunk, len(prompt))
        wanted = WantedRows(pooling=pooling, before=so_far)
        if pooling is Pooling.LAST and stop < len(prompt):
            wanted = None
        piece = one.piece(prompt[first:stop], first, sampled=0, wanted=wanted)
        reports = one.runner.compute(Plan(0, (piece,))).reports
        so_far = reports[0].pooled if reports else so_far
    return embedding(so_far, dimensions)


def floats(packed: bytes) -> Any:
    return np.frombuffer(packed, "<f4")


def whole_numbers(packed: bytes) -> Any:
    return np.frombuffer(packed, "<u4")


@pytest.mark.parametrize("path", ["fp32", "pairs"])
def test_a_prompts_logprobs_have_the_bits_of_decode(path: str, folder: Path, engine: Any, words: Words) -> None:
    one, start = engine(folder, product_path=path), words(20)
    sampling = Sampling(temperature=1.5, seed=3, top_logprobs=3)
    answer: list[Sampled] = one.generate(start, 30, sampling)
    text = [*start, *(sampled.token for sampled in answer)]
    found = scored(engine(folder, product_path=path), text, chunk=16)
    logprobs, behind = floats(found.logprobs), len(start) - 1
    assert len(logprobs) == len(text) - 1
    assert logprobs[behind:].tolist() == [sampled.logprob for sampled in answer]
    assert whole_numbers(found.top_ids)[3 * behind :].tolist() == [i for sampled in answer for i in sampled.top_ids]
    top = [value for sampled in answer for value in sampled.top_logprobs]
    assert floats(found.top_logprobs)[3 * behind :].tolist() == top


def test_neither_chunks_nor_batches_nor_slices_change_a_score(
    folder: Path, engine: Any, words: Words, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = words(75)
    whole = scored(engine(folder), prompt, chunk=75)
    for chunk in (1, 7, 32):
        assert scored(engine(folder), prompt, chunk=chunk) == whole, f"chunk {chunk}"
    crowded = engine(folder)
    others = (
        crowded.piece(words(40, 5), key=2, sampled=1, pages=(20, 21)),
        crowded.piece(words(9, 6), key=3, sampled=0, pages=(22,)),
    )
    assert scored(crowded, prompt, chunk=32, beside=others) == whole
    monkeypatch.setattr(engine_reports(), "SLICE_BYTES", 1)
    assert scored(engine(folder), prompt, chunk=32) == whole, "one row of logits at a time"


def engine_reports() -> Any:
    return engine.step.reports


def test_samples_beside_an_examination_keep_their_bits(folder: Path, engine: Any, words: Words) -> None:
    prompt, sampling = words(40, 5), Sampling(temperature=1.0, seed=9, top_logprobs=2)
    alone = engine(folder).generate(prompt, 1, sampling)[0]
    one = engine(folder)
    sampled = one.piece(prompt, key=2, sampled=1, pages=(20, 21), sampling=sampling)
    other = words(30, 7)
    for wanted in (WantedRows(tuple(other[1:])), WantedRows(pooling=Pooling.LAST), WantedRows(pooling=Pooling.MEAN)):
        examined = one.piece(other, sampled=0, wanted=wanted)
        assert one.runner.compute(Plan(0, (examined, sampled))).sampled == ((), (alone,))
        assert one.runner.compute(Plan(0, (sampled, examined))).sampled == ((alone,), ())


def test_a_draft_model_beside_changes_no_score_and_reads_the_prompt(folder: Path, engine: Any, words: Words) -> None:
    prompt = words(40)
    plain, one = scored(engine(folder), prompt, chunk=40), engine(folder, draft=folder)
    wanted = WantedRows(tuple(prompt[1:]), 3)
    piece = one.piece(prompt, sampled=0, wanted=wanted, drafting=Drafting(0))
    result = one.runner.compute(Plan(0, (piece,)))
    assert result.reports == (plain,) and result.proposed == ((),)


def test_ranks_count_likelier_tokens_and_equal_ones_of_lower_ids() -> None:
    logits = np.array([[1.0, 3.0, 3.0, 2.0], [0.0, 0.0, 0.0, 0.0]], np.float32)
    for token, rank in ((1, 1), (2, 2), (3, 3), (0, 4)):
        logprobs, ranks, ids, top = score(logits, np.array([token, 2], np.int32), 2)
        assert whole_numbers(ranks).tolist() == [rank, 3]
        assert whole_numbers(ids).tolist() == [1, 2, 0, 1]
        assert (floats(logprobs)[0] == floats(top)[0]) == (token in (1, 2)), "both are the likeliest"
        assert np.isclose(floats(logprobs)[1], -np.log(4))


def test_an_impossible_token_has_an_impossible_logprob() -> None:
    logits = np.array([[0.0, -np.inf, -np.inf]], np.float32)
    logprobs, ranks, *_ = score(logits, np.array([2], np.int32), 0)
    assert floats(logprobs).tolist() == [-np.inf] and whole_numbers(ranks).tolist() == [3]


@pytest.mark.parametrize("pooling", list(Pooling))
def test_chunks_do_not_change_a_bit_of_an_embedding(pooling: Pooling, folder: Path, engine: Any, words: Words) -> None:
    prompt = words(75)
    whole = pooled(engine(folder), prompt, pooling, chunk=75)
    assert np.isclose(np.linalg.norm(floats(whole)), 1.0)
    for chunk in (1, 7, 32):
        assert pooled(engine(folder), prompt, pooling, chunk=chunk) == whole, f"chunk {chunk}"
    assert pooled(engine(folder), words(75, 8), pooling, chunk=32) != whole


def test_fewer_dimensions_are_a_scaled_beginning() -> None:
    rng = np.random.default_rng(1)
    vector = rng.standard_normal(64).astype("<f4").tobytes()
    whole, short = floats(embedding(vector, 0)), floats(embedding(vector, 8))
    assert np.allclose(short, whole[:8] / np.linalg.norm(whole[:8]), atol=1e-6)
    assert floats(embedding(bytes(256), 0)).tolist() == [0.0] * 64


def test_rows_are_added_one_after_the_other() -> None:
    rows = np.array([[1e8], [1.0], [-1e8], [1.0]], np.float32)
    assert floats(add_rows(b"", rows)).tolist() == [1.0]
    assert add_rows(add_rows(b"", rows[:1]), rows[1:]) == add_rows(b"", rows)
