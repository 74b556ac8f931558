"""Attention whose heads have sinks: a score beside those of the slots, which takes its share of a row and adds
nothing."""

import numpy as np
import pytest

import baton_kernels as bk
from baton_kernels import machine, reference, selftest
from tests.unit.kernels.test_paged import FORMS, TOLERANCE, Case

# heads, kv_heads, dim, page_tokens, [(cached slots, rows) of each sequence]
TABLE = [
    (4, 2, 32, 32, [(0, 75), (31, 1), (5, 3)]),
    (8, 1, 64, 16, [(0, 130), (70, 1), (47, 9)]),
    (3, 3, 80, 64, [(0, 101), (200, 7)]),
    (7, 1, 64, 32, [(500, 60), (1060, 1)]),
]


def drawn(heads):
    """Sinks below, among and above the scores of a head."""
    return np.resize(np.array([0.3, -60.0, 4.0, 90.0, 1.5], np.float32), heads)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", TABLE)
def test_sinks_agree_with_the_reference_and_between_bodies(form, shape, pages, bits):
    case = Case(pages, form, *shape)
    kept = [case.pages.read(case.tables[s], start + count) for s, (start, count) in enumerate(shape[-1])]
    sinks, path = drawn(case.heads), case.pages.path
    for window, cap in ((0, 0.0), (33, 0.0), (0, 1.5)):
        got, row = bits.same(lambda window=window, cap=cap: case.attend(window=window, cap=cap, sinks=sinks)), 0
        for s, (start, count) in enumerate(shape[-1]):
            q, scale = case.q[s][start:], case.dim**-0.5
            expected = reference.attention(path, q, *kept[s], start, scale, cap, window, sinks)
            assert np.abs(got[row : row + count] - expected).max() <= 2 * TOLERANCE[path], (window, cap)
            row += count


def test_a_sink_takes_the_share_of_its_score(pages):
    """By hand: where all scores are 0, a row that sees n slots has n of n + e^sink parts of their mean."""
    case = Case(pages, "fp32", 2, 1, 16, 16, [(0, 40)])
    case.qkv[0][:, :48], case.qkv[0][:, 48:] = 0.0, np.arange(40, dtype=np.float32)[:, None]
    where, slots = np.zeros(40, np.int64), np.arange(40, dtype=np.int32)
    case.q[0] = case.pages.write(case.qkv[0], 2, case.tables, where, slots, case.cos, case.sin)
    sinks = np.log(np.array([3.0, 0.5], np.float32))
    for window in (0, 5):
        seen = [range(max(0, row - window + 1) if window else 0, row + 1) for row in range(40)]
        got = case.attend(window=window, sinks=sinks).reshape(40, 2, 16)[..., 0]
        for head, weight in enumerate((3.0, 0.5)):
            assert np.allclose(got[:, head], [sum(each) / (len(each) + weight) for each in seen], rtol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_sinks_do_not_depend_on_chunks_batch_or_page_size(form, pages):
    sequences, results, sinks = [(0, 150), (0, 40), (0, 530)], [], drawn(14)
    for page_tokens in (16, 32, 64):
        case = Case(pages, form, 14, 2, 64, page_tokens, sequences)
        whole = case.attend(sinks=sinks)
        results.append(whole)
        ends = np.cumsum([c for _, c in sequences])
        for chunk in (1, 7, 50):
            for s, (_, count) in enumerate(sequences):
                for begin in range(0 if chunk > 1 else max(0, count - 20), count, chunk):
                    rows = min(chunk, count - begin)
                    part = case.attend([begin] * 3, [rows if i == s else 0 for i in range(3)], sinks=sinks)
                    first = ends[s] - count + begin
                    assert np.array_equal(part, whole[first : first + rows]), (page_tokens, chunk, s, begin)
    assert np.array_equal(results[0], results[1]) and np.array_equal(results[1], results[2])


def test_a_sink_far_below_all_scores_changes_no_bit_and_one_far_above_leaves_nothing(pages, bits):
    case = Case(pages, "pairs", 4, 2, 32, 32, [(0, 75), (1030, 20)])
    low, high = np.full(4, -1e4, np.float32), np.full(4, 1e4, np.float32)
    assert np.array_equal(bits.same(lambda: case.attend(sinks=low)), case.attend())
    assert not bits.same(lambda: case.attend(sinks=high)).any()


def test_sinks_of_another_number_of_heads_are_refused(pages):
    with pytest.raises(bk.KernelError, match="sinks"):
        Case(pages, "fp32", 4, 2, 32, 32, [(0, 5)]).attend(sinks=np.zeros(3, np.float32))


def test_the_self_test_knows_the_bits_of_sinks_and_notices_that_they_are_left_out(monkeypatch):
    assert selftest.self_test("sinks") == selftest.KNOWN["sinks"]
    right = selftest.kv.attention

    def without(*given, **named):
        *before, sinks = given
        return right(*before, sinks if machine.forced() == "plain" else None, **named)

    monkeypatch.setattr(selftest.kv, "attention", without)
    with pytest.raises(bk.KernelError, match="self-test of path 'sinks' failed"):
        selftest.self_test("sinks")
