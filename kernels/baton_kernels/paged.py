"""Kernels around the KV pages of one layer: rotary with the page write, attention over a block table; the layout.

Page = [layers][2][kv_heads][tile]. pairs and amx: bf16, K tile [dim/2][page_tokens][2], V tile [page_tokens/2][dim][2];
fp32: K tile [dim][page_tokens], V tile [page_tokens][dim]. With `kv` int8 or fp8, on every path: the tiles of pairs,
with a byte per element, its code, and behind each tile [page_tokens] scales in bf16 (cpu/page_codes.h); with int4 two
codes of one token in a byte, and the same scales. The rows of one call may belong to any mix of sequences."""

from baton_kernels.arrays import F32, I32, I64, Array, buffer, path_index, pointer, rank, writable
from baton_kernels.library import KernelError, check, load

PAGE_TOKENS = (16, 32, 64)
_TILES = {"fp32": ("fp32-v1", "fp32"), "pairs": ("pairs-v1", "bf16"), "amx": ("pairs-v1", "bf16")}
_ELEMENT_BYTES = {"fp32": 4, "pairs": 2, "amx": 2}
_SCALE_BYTES = 2
MOST_DIM = 576  # elements of a head
_ALL_POSITIONS = 1 << 31  # more than any slot
OWN = "own"  # a path's own keys and values, which it multiplies as they are
_CODES = {"int8": ("codes-v1", "int8"), "fp8": ("codes-v1", "fp8-e4m3"), "int4": ("nibbles-v1", "int4")}
KV = (OWN, *_CODES)  # how pages hold keys and values


def tiles(path: str, kv: str = OWN) -> tuple[str, str]:
    """Name of the order of a head's keys and values in a page, and the dtype of an element."""
    path_index(path)
    return _CODES[kv] if kv_index(kv) else _TILES[path]


def layer_bytes(path: str, page_tokens: int, kv_heads: int, dim: int, kv: str = OWN) -> int:
    """Bytes of one layer of one page."""
    check_shape(path, page_tokens, dim)
    codes = dim // 2 if kv == "int4" else dim
    return 2 * kv_heads * page_tokens * (codes + _SCALE_BYTES if kv_index(kv) else dim * _ELEMENT_BYTES[path])


def kv_index(kv: str) -> int:
    if kv not in KV:
        raise KernelError(f"kv: {kv!r} is not one of {', '.join(KV)}")
    return KV.index(kv)


def check_shape(path: str, page_tokens: int, dim: int) -> None:
    path_index(path)
    if page_tokens not in PAGE_TOKENS:
        raise KernelError(f"page_tokens: {page_tokens} is not one of {PAGE_TOKENS}")
    if dim % 16 or not 16 <= dim <= MOST_DIM:
        raise KernelError(f"dim: {dim} is not a multiple of 16 up to {MOST_DIM}")


def rotate_write(
    path: str,
    qkv: Array,  # [rows, (heads + 2 * kv_heads) * dim]
    heads: int,
    kv_heads: int,
    dim: int,
    cos: Array | None,  # [positions, dim / 2]; None: nothing is rotated
    sin: Array | None,
    slots: Array,  # int32 [rows], slot and position of each row
    page_of: Array,  # int64 [rows], byte offset of the row's page and layer in the pool
    offset_in_page: Array,  # int32 [rows]
    page_tokens: int,
    pool: Array,  # uint8
    q_out: Array,  # [rows, heads, dim]
    q_norm: Array | None = None,  # [dim]
    k_norm: Array | None = None,
    eps: float = 1e-6,
    kv: str = OWN,
) -> None:
    """Rotates q and k (after their norms, if any), writes q to q_out and k and v to the row's page."""
    check_shape(path, page_tokens, dim)
    rows, _ = rank("qkv", qkv, 2)
    positions = _ALL_POSITIONS if cos is None else rank("cos", cos, 2)[0]
    if not pool.flags.writeable:
        raise KernelError("pool: is read-only but is written to")
    check(
        load().rotate_write(
            path_index(path),
            kv_index(kv),
            pointer("qkv", qkv, F32, (rows, (heads + 2 * kv_heads) * dim)),
            rows,
            heads,
            kv_heads,
            dim,
            None if cos is None else pointer("cos", cos, F32, (positions, dim // 2)),
            None if sin is None else pointer("sin", sin, F32, (positions, dim // 2)),
            positions,
            pointer("slots", slots, I32, (rows,)),
            pointer("page_of", page_of, I64, (rows,)),
            pointer("offset_in_page", offset_in_page, I32, (rows,)),
            page_tokens,
            buffer("pool", pool, 0),
            pool.size,
            writable("q_out", q_out, F32, (rows, heads, dim)),
            None if q_norm is None else pointer("q_norm", q_norm, F32, (dim,)),
            None if k_norm is None else pointer("k_norm", k_norm, F32, (dim,)),
            eps,
        )
    )


def attention(
    path: str,
    q: Array,  # [rows, heads, dim]
    pool: Array,  # uint8
    layer_offset: int,  # byte offset of the layer inside a page
    page_stride: int,  # bytes
    tables: Array,  # int32 [sequences, max_pages]
    starts: Array,  # int32 [sequences], slot of each sequence's first row
    counts: Array,  # int32 [sequences], rows of each sequence
    first_row: Array,  # int32 [sequences], index in q of each sequence's first row
    heads: int,
    kv_heads: int,
    dim: int,
    page_tokens: int,
    scale: float,
    out: Array,  # [rows, heads * dim]
    kv: str = OWN,
    cap: float = 0.0,  # bound of scores; 0: none
    window: int = 0,  # slots that a row sees, its own the last; 0: all
    sinks: Array | None = None,  # [heads] a score beside those of the slots, which takes its share and adds nothing
    stretches: bool = False,  # scores in fp32 are sums of a chain for every 16 elements, as those over a latent
) -> None:
    """Row i of a sequence sees its slots up to starts + i, which must have been written. Pages before the window of its
    first row are not read. Rows of `out` that belong to no sequence keep their content."""
    check_shape(path, page_tokens, dim)
    rows, _, _ = rank("q", q, 3)
    sequences, max_pages = rank("tables", tables, 2)
    if kv_heads < 1 or heads % kv_heads:
        raise KernelError(f"heads: {heads} is not a multiple of kv_heads {kv_heads}")
    check(
        load().attention(
            path_index(path),
            kv_index(kv),
            stretches,
            pointer("q", q, F32, (rows, heads, dim)),
            buffer("pool", pool, 0),
            pool.size,
            layer_offset,
            page_stride,
            pointer("tables", tables, I32, (sequences, max_pages)),
            max_pages,
            pointer("starts", starts, I32, (sequences,)),
            pointer("counts", counts, I32, (sequences,)),
            pointer("first_row", first_row, I32, (sequences,)),
            sequences,
            rows,
            heads,
            kv_heads,
            dim,
            page_tokens,
            window,
            scale,
            cap,
            None if sinks is None else pointer("sinks", sinks, F32, (heads,)),
            writable("out", out, F32, (rows, heads * dim)),
        )
    )
