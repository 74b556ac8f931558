"""Packing prompts into steps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.step.batch import Chunk, Remaining, chunks, decode_piece, pages_filled, pages_needed, prompt_piece
from mesh.messages.jobs import Sampling

remaining = st.tuples(st.integers(1, 300), st.integers(0, 299)).map(lambda pair: (max(pair), min(pair)))
waiting = st.lists(remaining.filter(lambda pair: pair[0] > pair[1]), max_size=8).map(
    lambda pairs: [Remaining(key, total, done) for key, (total, done) in enumerate(pairs)]
)


@given(waiting, st.integers(-5, 600), st.integers(1, 200))
def test_chunks_respect_budget_order_and_chunk_and_waste_no_row(
    prompts: list[Remaining], budget: int, chunk: int
) -> None:
    chosen = chunks(prompts, budget=budget, chunk=chunk)
    assert sum(one.count for one in chosen) == max(0, min(budget, sum(min(chunk, p.total - p.done) for p in prompts)))
    for one, prompt in zip(chosen, prompts, strict=False):  # in order, nobody is skipped
        assert one.key == prompt.key and one.first == prompt.done and 1 <= one.count <= chunk
        assert one.last == (one.first + one.count == prompt.total) and one.first + one.count <= prompt.total
    for one, prompt in list(zip(chosen, prompts, strict=False))[:-1]:
        assert one.count == min(chunk, prompt.total - prompt.done)


@given(
    st.integers(1, 400), st.integers(0, 399), st.lists(st.integers(1, 90), min_size=1), st.sampled_from([16, 32, 64])
)
def test_over_a_prompt_every_page_is_filled_once_and_only_when_complete(
    total: int, done: int, sizes: list[int], page_tokens: int
) -> None:
    done = min(done, total - 1)
    first, seen, step = done, [], 0
    while first < total:
        size = sizes[step % len(sizes)]
        (chunk,) = chunks([Remaining(1, total, first)], budget=size, chunk=64)
        filled = pages_filled(chunk, page_tokens)
        first += chunk.count
        assert all((page + 1) * page_tokens <= first or chunk.last for page in filled)
        seen.extend(filled)
        step += 1
    assert seen == list(range(done // page_tokens, pages_needed(total, page_tokens)))


def test_a_prompt_piece_is_sampled_at_its_end_only() -> None:
    tokens, pages, sampling = list(range(100)), [9, 8, 7, 6, 5], Sampling(seed=1)
    first = prompt_piece(Chunk(3, 0, 40, False), tokens, pages, page_tokens=32, sampling=sampling)
    assert (first.tokens, first.pages, first.sampled) == (tuple(range(40)), (9, 8), 0) and first.sampling is None
    last = prompt_piece(Chunk(3, 40, 60, True), tokens, pages, page_tokens=32, sampling=sampling, position=2)
    assert (last.start, last.stop, last.pages, last.sampled) == (40, 100, (9, 8, 7, 6), 1)
    assert last.sampling == sampling and last.position == 2


def test_a_decode_piece_samples_every_row() -> None:
    piece = decode_piece(5, [42, 1, 2], 63, [4, 3, 2, 1], page_tokens=32, sampling=Sampling(), position=7)
    assert (piece.tokens, piece.start, piece.sampled, piece.position) == ((42, 1, 2), 63, 3, 7)
    assert piece.pages == (4, 3, 2)


def test_a_finished_prompt_cannot_wait() -> None:
    with pytest.raises(ValueError, match="at least one row"):
        Remaining(1, 10, 10)
