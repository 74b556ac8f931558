"""Norms, rotary with page writes, and attention over pages whose unused slots are NaN."""

import numpy as np
import pytest

import baton_kernels as bk
from baton_kernels import reference

# heads, kv_heads, dim, page_tokens, [(cached slots, rows) of each sequence]
TABLE = [
    (1, 1, 16, 16, [(0, 1)]),
    (4, 4, 32, 32, [(0, 33), (31, 1), (32, 1), (5, 3)]),
    (14, 2, 64, 32, [(0, 130), (70, 1), (15, 9)]),
    (14, 2, 64, 16, [(63, 1), (64, 2), (0, 17)]),
    (8, 1, 48, 64, [(100, 40), (0, 1)]),
    (6, 2, 128, 64, [(0, 70), (129, 1)]),
    (32, 1, 256, 32, [(40, 5), (3, 1)]),
    (3, 3, 80, 16, [(0, 101), (200, 7)]),
    (14, 2, 64, 32, [(500, 40), (1030, 1)]),
    (2, 1, 48, 16, [(1020, 9)]),
    (16, 1, 576, 32, [(40, 11), (3, 1), (515, 2)]),
]
FORMS = [*bk.PATHS, *(f"{path}+{kv}" for path in bk.PATHS for kv in bk.KV if kv != bk.OWN)]
TOLERANCE = {"fp32": 2e-5, "pairs": 1.5e-2, "amx": 1.5e-2}


class Case:
    """Random rows of several sequences over shuffled pages, all slots written up to the last row."""

    def __init__(self, pages, form, heads, kv_heads, dim, page_tokens, sequences, seed=3):
        rng = np.random.default_rng(seed)
        self.heads, self.kv_heads, self.dim, self.page_tokens = heads, kv_heads, dim, page_tokens
        self.starts, self.counts = (np.array(column, np.int32) for column in zip(*sequences, strict=True))
        slots = [int(s + c) for s, c in sequences]
        widest = max(-(-n // page_tokens) for n in slots)
        ids = rng.permutation(widest * len(slots) + 1)[1:]
        self.pages = pages(form, page_tokens, kv_heads, dim, widest * len(slots) + 1)
        self.tables = ids[: widest * len(slots)].reshape(len(slots), widest).astype(np.int32)
        angle = np.outer(np.arange(max(slots)), np.random.default_rng(1).random(dim // 2))
        self.cos, self.sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
        self.qkv, self.q = [], []
        for s, n in enumerate(slots):
            rng_s = np.random.default_rng(
                [seed, s]
            )  # a sequence's content does not depend on the others or on the pages
            qkv = rng_s.standard_normal((n, (heads + 2 * kv_heads) * dim)).astype(np.float32)
            self.qkv.append(qkv)
            where = np.full(n, s)
            self.q.append(
                self.pages.write(qkv, heads, self.tables, where, np.arange(n, dtype=np.int32), self.cos, self.sin)
            )

    def attend(self, starts=None, counts=None, cap=0.0, window=0, sinks=None, stretches=False):
        starts, counts = (self.starts, self.counts) if starts is None else (starts, counts)
        q = np.concatenate([q[a : a + c] for q, a, c in zip(self.q, starts, counts, strict=True)])
        first = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int32)
        out = np.full((len(q), self.heads * self.dim), np.nan, np.float32)
        bk.attention(
            self.pages.path,
            q,
            self.pages.pool,
            self.pages.layer,
            self.pages.stride,
            self.tables,
            np.array(starts, np.int32),
            np.array(counts, np.int32),
            first,
            self.heads,
            self.kv_heads,
            self.dim,
            self.page_tokens,
            self.dim**-0.5,
            out,
            self.pages.kv,
            cap,
            window,
            sinks,
            stretches,
        )
        return out


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("heads,kv_heads,dim,page_tokens,sequences", TABLE)
def test_attention_agrees_with_the_reference_and_between_bodies(
    form, heads, kv_heads, dim, page_tokens, sequences, pages, bits
):
    case = Case(pages, form, heads, kv_heads, dim, page_tokens, sequences)
    got = bits.same(case.attend)
    row = 0
    for s, (start, count) in enumerate(sequences):
        k, v = case.pages.read(case.tables[s], start + count)
        expected = reference.attention(case.pages.path, case.q[s][start:], k, v, start, dim**-0.5)
        assert np.abs(got[row : row + count] - expected).max() <= TOLERANCE[case.pages.path]
        row += count


@pytest.mark.parametrize("form", FORMS)
def test_attention_does_not_depend_on_chunks_batch_or_page_size(form, pages):
    sequences = [(0, 150), (0, 40), (0, 97)]
    results = []
    for page_tokens in (16, 32, 64):
        case = Case(pages, form, 14, 2, 64, page_tokens, sequences)
        whole = case.attend()
        results.append(whole)
        ends = np.cumsum([c for _, c in sequences])
        for chunk in (1, 7, 16, 50):
            for s, (_, count) in enumerate(sequences):
                for begin in range(0, count, chunk):
                    rows = min(chunk, count - begin)
                    counts = [rows if i == s else 0 for i in range(3)]
                    part = case.attend([begin] * 3, counts)
                    first = ends[s] - count + begin
                    assert np.array_equal(part, whole[first : first + rows]), (page_tokens, chunk, s, begin)
    assert np.array_equal(results[0], results[1]) and np.array_equal(results[1], results[2])


@pytest.mark.parametrize("form", FORMS)
def test_a_changed_key_within_sight_changes_the_output_and_one_beyond_does_not(form, pages):
    case = Case(pages, form, 4, 2, 32, 32, [(40, 1)])
    before = case.attend()
    late = Case(pages, form, 4, 2, 32, 32, [(40, 10)])
    assert np.array_equal(late.attend([40], [1]), before)
    case.qkv[0][39] *= 2
    case.pages.write(
        case.qkv[0], 4, case.tables, np.zeros(41, np.int64), np.arange(41, dtype=np.int32), case.cos, case.sin
    )
    assert not np.array_equal(case.attend(), before)


@pytest.mark.parametrize("path", bk.PATHS)
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(
    "heads,kv_heads,dim,page_tokens", [(1, 1, 16, 16), (6, 2, 48, 32), (4, 4, 128, 64), (2, 1, 256, 16)]
)
def test_rotary_and_page_write_agree_with_the_reference(path, normed, heads, kv_heads, dim, page_tokens, rng, bits):
    rows = 2 * page_tokens - 3
    qkv = rng.standard_normal((rows, (heads + 2 * kv_heads) * dim)).astype(np.float32)
    angle = np.outer(np.arange(rows), rng.random(dim // 2))
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    norms = [rng.random(dim).astype(np.float32) + 0.5 for _ in range(2)] if normed else [None, None]
    slots, layer = np.arange(rows, dtype=np.int32), bk.layer_bytes(path, page_tokens, kv_heads, dim)
    pool, q = np.zeros(layer * 3, np.uint8), np.zeros((rows, heads, dim), np.float32)

    def compute():
        pool[:], q[:] = 0xFF, np.nan
        bk.rotate_write(
            path,
            qkv,
            heads,
            kv_heads,
            dim,
            cos,
            sin,
            slots,
            np.where(slots < page_tokens, 2, 1).astype(np.int64) * layer,
            slots % page_tokens,
            page_tokens,
            pool,
            q,
            *norms,
            1e-6,
        )
        return np.concatenate([pool, q.view(np.uint8).ravel()])

    bits.same(compute)
    parts = np.split(qkv.reshape(rows, -1, dim), [heads, heads + kv_heads], axis=1)
    if normed:
        parts[:2] = [
            reference.rmsnorm(part, norm, 1e-6).astype(np.float32) for part, norm in zip(parts, norms, strict=False)
        ]
    assert np.abs(q - reference.rotary(parts[0], cos, sin)).max() <= 1e-5
    k, v = (
        np.concatenate(a)
        for a in zip(
            *(reference.read_page(path, pool[p * layer :][:layer], kv_heads, page_tokens, dim) for p in (2, 1)),
            strict=True,
        )
    )
    assert np.abs(k[:rows] - reference.rotary(parts[1], cos, sin)).max() <= (1e-5 if path == "fp32" else 2e-2)
    assert np.array_equal(v[:rows], reference.stored(path, parts[2]))
    assert np.isnan(k[rows:]).all() and np.isnan(v[rows:]).all() and (pool[:layer] == 0xFF).all()


EDGES = [0.0, 1e-31, 2.0**-99, 1e-20, 1.0, 3e38]  # the largest element of a head


@pytest.mark.parametrize("kv", bk.KV[1:])
@pytest.mark.parametrize("kv_heads,dim,page_tokens", [(1, 16, 16), (2, 48, 32), (4, 128, 64), (1, 256, 16)])
def test_codes_and_scales_agree_with_the_reference_on_every_body(kv, kv_heads, dim, page_tokens, rng, bits):
    """Whole heads of all sizes, with every e4m3 number among them, ties between two, and heads that are not finite."""
    rows = 3 * page_tokens
    x = rng.standard_normal((rows, kv_heads, dim)).astype(np.float32) ** 3
    x[: len(EDGES)] *= (np.array(EDGES) / np.abs(x[: len(EDGES)]).max((1, 2))).astype(np.float32)[:, None, None]
    every = reference.decoded("fp8", np.arange(0x7F, dtype=np.uint8))
    ties = np.sort(np.concatenate([every, (every[:-1] + every[1:]) / 2, [448.0]])).astype(np.float32)
    sides = np.where(np.arange(len(ties)) % 2, 1, -1).astype(np.float32)
    part = (ties * sides).reshape(-1)[: (dim - 1) * kv_heads * 8]
    for row, begin in enumerate(range(0, len(part), dim - 1)):
        some = part[begin : begin + dim - 1]
        x[8 + row % 8, row // 8 % kv_heads, : len(some)], x[8 + row % 8, row // 8 % kv_heads, -1] = some, 448.0
    x[20, 0, 3], x[21, -1, 5], x[22, 0, 0] = np.nan, np.inf, -np.inf
    qkv = np.concatenate([np.zeros_like(x), x, -x], axis=1).reshape(rows, -1)
    layer = bk.layer_bytes("pairs", page_tokens, kv_heads, dim, kv)
    slots, pool = np.arange(rows, dtype=np.int32), np.empty(layer * 3, np.uint8)
    one, none = np.ones((rows, dim // 2), np.float32), np.zeros((rows, dim // 2), np.float32)

    def compute():
        pool[:] = 0xFF
        page_of, offsets = (slots // page_tokens).astype(np.int64) * layer, slots % page_tokens
        q = np.empty((rows, kv_heads, dim), np.float32)
        shape = (kv_heads, kv_heads, dim)
        bk.rotate_write("pairs", qkv, *shape, one, none, slots, page_of, offsets, page_tokens, pool, q, kv=kv)
        return pool.copy()

    bits.same(compute)
    found = [reference.read_codes(kv, each, kv_heads, page_tokens, dim) for each in pool.reshape(3, layer)]
    codes, scales = reference.coded(kv, x)
    expected = reference.decoded(kv, codes) * scales
    for got, sign in ((np.concatenate([k for k, _ in found]), 1), (np.concatenate([v for _, v in found]), -1)):
        assert np.array_equal(got, sign * expected, equal_nan=True)
    wrong = np.isnan(expected).all(2)
    assert wrong.sum() == 3 and not np.isnan(expected[~wrong]).any() and not expected[0].any() and expected[4].any()


@pytest.mark.parametrize("kv", bk.KV[1:])
def test_a_head_that_is_not_finite_makes_every_row_that_sees_it_nan(kv, pages):
    case = Case(pages, f"pairs+{kv}", 4, 2, 32, 32, [(0, 40)])
    assert np.isfinite(case.attend()).all()
    case.qkv[0][17, 4 * 32] = np.inf  # the first key
    case.pages.write(
        case.qkv[0], 4, case.tables, np.zeros(40, np.int64), np.arange(40, dtype=np.int32), case.cos, case.sin
    )
    half = case.attend().reshape(40, 2, -1)
    assert np.isfinite(half[:17]).all() and np.isfinite(half[:, 1]).all() and np.isnan(half[17:, 0]).all()


@pytest.mark.parametrize("rows,k", [(1, 1), (3, 15), (2, 64), (5, 100), (70, 896), (33, 1000)])
def test_rmsnorm_agrees_with_the_reference(rows, k, rng, bits):
    x, weight = rng.standard_normal((rows, k)).astype(np.float32) * 3, rng.standard_normal(k).astype(np.float32)

    def compute():
        out = np.full((rows, k), np.nan, np.float32)
        bk.rmsnorm(x, weight, 1e-6, out)
        return out

    expected = reference.rmsnorm(x, weight, 1e-6)
    assert np.abs(bits.same(compute) - expected).max() <= 1e-6 * max(1.0, np.abs(expected).max())


def test_the_order_of_a_tile_has_a_name_and_a_dtype():
    assert bk.tiles("fp32") == ("fp32-v1", "fp32")
    assert bk.tiles("pairs") == bk.tiles("amx") == ("pairs-v1", "bf16")  # the same bytes
    assert bk.tiles("fp32", "int8") == bk.tiles("amx", "int8") == ("codes-v1", "int8")
    assert bk.tiles("fp32", "int4") == bk.tiles("amx", "int4") == ("nibbles-v1", "int4")
    with pytest.raises(bk.KernelError):
        bk.tiles("cuda")
    with pytest.raises(bk.KernelError, match="kv: 'int3' is not one of own, int8, fp8, int4"):
        bk.tiles("fp32", "int3")


def test_pages_of_codes_hold_about_twice_the_tokens_of_bf16_and_of_half_bytes_nearly_four_times():
    own, eight, four = (bk.layer_bytes("pairs", 32, 2, 64, kv) for kv in (bk.OWN, "int8", "int4"))
    assert own / eight == 128 / 66 and own / four == 128 / 34


@pytest.mark.parametrize("wrong", [("cuda", 32, 1, 64), ("pairs", 24, 1, 64), ("fp32", 32, 1, 40)])
def test_a_page_has_a_size_for_shapes_that_kernels_know_only(wrong):
    with pytest.raises(bk.KernelError):
        bk.layer_bytes(*wrong)


def test_pages_outside_the_pool_or_the_table_are_refused(pages):
    case = Case(pages, "pairs", 4, 2, 32, 32, [(40, 1)])
    right = case.tables.copy()
    for wrong in (-1, 1000):
        case.tables = right.copy()
        case.tables[0, 1] = wrong
        with pytest.raises(bk.KernelError, match="tables"):
            case.attend()
    case.tables = right[:, :1].copy()
    with pytest.raises(bk.KernelError, match="tables"):
        case.attend()
    case.tables = right
    assert np.isfinite(case.attend()).all()
    with pytest.raises(bk.KernelError, match="slots"):
        case.pages.write(case.qkv[0][:1], 4, right, np.zeros(1, np.int64), np.array([41], np.int32), case.cos, case.sin)
