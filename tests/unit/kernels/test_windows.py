"""Attention whose rows see the last slots only. Slots before a row's window may hold anything, as their pages may
belong to another request."""

import numpy as np
import pytest

import baton_kernels as bk
from baton_kernels import machine, reference, selftest
from tests.unit.kernels.test_paged import FORMS, TOLERANCE, Case

# heads, kv_heads, dim, page_tokens, [(cached slots, rows) of each sequence]
TABLE = [
    (4, 2, 32, 32, [(0, 75), (31, 1), (64, 1), (5, 3)]),
    (14, 2, 64, 16, [(0, 130), (70, 1), (47, 9)]),
    (8, 1, 48, 64, [(100, 40), (0, 1)]),
    (32, 1, 256, 32, [(60, 5)]),
    (3, 3, 80, 16, [(0, 101), (200, 7)]),
    (7, 1, 64, 32, [(500, 60), (1060, 1), (1020, 9)]),
]
WINDOWS = (1, 2, 17, 31, 32, 33, 64, 100, 511, 512, 600)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", TABLE)
def test_windows_agree_with_the_reference_and_between_bodies(form, shape, pages, bits):
    case = Case(pages, form, *shape)
    kept = [case.pages.read(case.tables[s], start + count) for s, (start, count) in enumerate(shape[-1])]
    longest, q = max(sum(each) for each in shape[-1]), case.q
    windows = WINDOWS[1::3] if "+" in form else WINDOWS  # codes do not know where a window begins
    for window in (each for each in windows if each <= longest):
        got, row = bits.same(lambda window=window: case.attend(window=window)), 0
        for s, (start, count) in enumerate(shape[-1]):
            path, scale = case.pages.path, case.dim**-0.5
            expected = reference.attention(path, q[s][start:], *kept[s], start, scale, window=window)
            assert np.abs(got[row : row + count] - expected).max() <= TOLERANCE[case.pages.path], window
            row += count


def test_a_window_shows_a_row_its_own_slot_and_those_before_it(pages):
    """By hand: the values of the slots that a row sees have one mean, where all scores are equal."""
    case = Case(pages, "fp32", 1, 1, 16, 16, [(0, 40)])
    case.qkv[0][:, :32], case.qkv[0][:, 32:] = 0.0, np.arange(40, dtype=np.float32)[:, None]
    where, slots = np.zeros(40, np.int64), np.arange(40, dtype=np.int32)
    case.q[0] = case.pages.write(case.qkv[0], 1, case.tables, where, slots, case.cos, case.sin)
    for window in (1, 2, 5, 33):
        means = [np.arange(max(0, row - window + 1), row + 1).mean() for row in range(40)]
        assert np.allclose(case.attend(window=window)[:, 0], means, rtol=1e-6)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("window", [5, 33, 90])
def test_windows_do_not_depend_on_chunks_batch_or_page_size(form, window, pages):
    sequences, results = [(0, 150), (0, 40), (0, 97)], []
    for page_tokens in (16, 32, 64):
        case = Case(pages, form, 14, 2, 64, page_tokens, sequences)
        whole = case.attend(window=window)
        results.append(whole)
        ends = np.cumsum([c for _, c in sequences])
        for chunk in (1, 7, 50):
            for s, (_, count) in enumerate(sequences):
                for begin in range(0, count, chunk):
                    rows = min(chunk, count - begin)
                    part = case.attend([begin] * 3, [rows if i == s else 0 for i in range(3)], window=window)
                    first = ends[s] - count + begin
                    assert np.array_equal(part, whole[first : first + rows]), (page_tokens, chunk, s, begin)
    assert np.array_equal(results[0], results[1]) and np.array_equal(results[1], results[2])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("start", [519, 600])
@pytest.mark.parametrize("window", [1, 8, 40, 90, 515])
def test_what_lies_before_a_window_changes_no_bit_and_its_pages_are_not_looked_up(form, start, window, pages, bits):
    case = Case(pages, form, 6, 2, 64, 16, [(0, start + 5)])
    before = case.attend([start], [5], window=window)
    first = max(0, start - window + 1)
    case.qkv[0][:first] = np.nan
    where, slots = np.zeros(start + 5, np.int64), np.arange(start + 5, dtype=np.int32)
    case.pages.write(case.qkv[0], 6, case.tables, where, slots, case.cos, case.sin)
    case.tables[0, : first // 16] = -1
    assert np.array_equal(bits.same(lambda: case.attend([start], [5], window=window)), before)
    if first:
        case.qkv[0][first] *= 2
        case.pages.write(case.qkv[0][first:], 6, case.tables, where[first:], slots[first:], case.cos, case.sin)
        assert not np.array_equal(case.attend([start], [5], window=window), before), "the first slot is not seen"
    if first >= 16:
        with pytest.raises(bk.KernelError, match="tables"):
            case.attend([start], [5], window=window + 17)


@pytest.mark.parametrize("form", FORMS)
def test_a_window_as_long_as_the_text_is_none(form, pages):
    case = Case(pages, form, 4, 2, 32, 32, [(0, 75), (1030, 20)])
    for cap in (0.0, 1.5):
        assert np.array_equal(case.attend(window=1050, cap=cap), case.attend(cap=cap))
        assert not np.array_equal(case.attend(window=1049, cap=cap), case.attend(cap=cap))


def test_a_negative_window_is_refused(pages):
    with pytest.raises(bk.KernelError, match="window: negative"):
        Case(pages, "fp32", 4, 2, 32, 32, [(0, 5)]).attend(window=-1)


def test_the_self_test_knows_the_bits_of_windows_and_notices_a_changed_one(monkeypatch):
    assert selftest.self_test("windows") == selftest.KNOWN["windows"]
    right = selftest.kv.attention

    def late(*given):
        *before, window, sinks = given
        return right(*before, window + 1 if window == 33 and machine.forced() != "plain" else window, sinks)

    monkeypatch.setattr(selftest.kv, "attention", late)
    with pytest.raises(bk.KernelError, match="self-test of path 'windows' failed"):
        selftest.self_test("windows")
