"""Pages between the pool and a contiguous buffer, for transfers: copy, checksum and change of layout in one pass.

`gather` reads pages of the pool, `scatter` writes them; the buffer holds one page's span of layers after the other. The
checksum is that of the CPU kernels, over the 64-bit words of the buffer, counted from the first word of the page: it
covers exactly the bytes that travel. When the other end is a CPU pool, the buffer has the CPU's tiles (K for dot
products, V with token pairs interleaved) and one page of the buffer may cover several pages of this pool. `read_spans`
and `write_spans` know no layout: they move the bytes of a page from an offset on as they are."""

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from baton_kernels.library import KernelError
from baton_kernels.triton.launch import Launch, architecture, blocks, check, check_rank, run
from baton_kernels.triton.layout import GpuPageShape

BLOCK = 2048  # 64-bit words that one program moves
SHAPES = (  # page_tokens, kv_heads, dim, kv_type, tokens of a CPU page (0: same layout)
    (16, 2, 32, "bf16", 0),
    (16, 3, 48, "fp8", 0),
    (16, 2, 32, "bf16", 32),
    (32, 1, 64, "bf16", 32),
    (16, 2, 16, "bf16", 64),
)


def gather(
    pool: torch.Tensor,  # uint8
    shape: GpuPageShape,
    pages: torch.Tensor,  # int32 [count, pages of this pool per page of the buffer]
    *,
    first_layer: int,
    layers: int,
    out: torch.Tensor,  # uint8 [count, bytes of the span]
    sums: torch.Tensor,  # int64 [count], the checksums' 64 bits
    cpu_page_tokens: int = 0,  # 0: the buffer has this pool's own layout
) -> None:
    architecture(pool)
    sums.zero_()
    run(list(launches(pool, shape, pages, first_layer, layers, out, sums, cpu_page_tokens, into_pool=False)))


def scatter(
    data: torch.Tensor,  # uint8 [count, bytes of the span]
    pool: torch.Tensor,
    shape: GpuPageShape,
    pages: torch.Tensor,
    *,
    first_layer: int,
    layers: int,
    sums: torch.Tensor,
    cpu_page_tokens: int = 0,
) -> None:
    architecture(pool)
    sums.zero_()
    run(list(launches(pool, shape, pages, first_layer, layers, data, sums, cpu_page_tokens, into_pool=True)))


def read_spans(
    pool: torch.Tensor,  # uint8
    page_bytes: int,
    first_byte: int,  # within a page
    pages: torch.Tensor,  # int32 [count]
    *,
    out: torch.Tensor,  # uint8 [count, bytes of the span]
    sums: torch.Tensor,  # int64 [count]
) -> None:
    architecture(pool)
    sums.zero_()
    run([_plain(pool, page_bytes, first_byte, pages, out, sums, into_pool=False)])


def write_spans(
    data: torch.Tensor,  # uint8 [count, bytes of the span]
    pool: torch.Tensor,
    page_bytes: int,
    first_byte: int,
    pages: torch.Tensor,
    *,
    sums: torch.Tensor,
) -> None:
    architecture(pool)
    sums.zero_()
    run([_plain(pool, page_bytes, first_byte, pages, data, sums, into_pool=True)])


def span_bytes(shape: GpuPageShape, layers: int, cpu_page_tokens: int = 0) -> int:
    """Bytes that one page takes in the buffer."""
    return layers * shape.layer_bytes * (cpu_page_tokens // shape.page_tokens if cpu_page_tokens else 1)


def to_cpu_layout(tokens: torch.Tensor) -> torch.Tensor:
    """Reference: K and V [2, kv_heads, page_tokens, dim] of one layer -> the CPU's tiles, flat, any element type."""
    k, v = tokens
    heads, count, dim = k.shape
    k = k.reshape(heads, count, dim // 2, 2).transpose(1, 2)
    v = v.reshape(heads, count // 2, 2, dim).transpose(2, 3)
    return torch.cat([k.reshape(-1), v.reshape(-1)])


@triton.jit
def _word_key(i):
    x = (i.to(tl.uint64) + 1) * 0x9E3779B97F4A7C15
    y = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93
    return (y ^ (y >> 29)) | 1


@triton.jit(do_not_specialize=["words", "first_word"])
def _move(
    pool,
    pages,
    data,
    sums,
    words,
    first_word,
    first_pool,
    page_stride,
    INTO_POOL: tl.constexpr,
    CPU_TOKENS: tl.constexpr,
    RATIO: tl.constexpr,
    PAGE: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """`pool` is an array of 64-bit words where the layouts are equal, else of pairs of elements (32 bits); `first_pool`
    and `page_stride` count in the same unit."""
    page = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < words
    buffer = data + page * words + at
    if CPU_TOKENS == 0:
        own = pool + tl.load(pages + page).to(tl.int64) * page_stride + first_pool + at
        if INTO_POOL:
            word = tl.load(buffer, mask=inside, other=0)
            tl.store(own, word, mask=inside)
        else:
            word = tl.load(own, mask=inside, other=0)
            tl.store(buffer, word, mask=inside)
    else:
        TILE: tl.constexpr = CPU_TOKENS * DIM // 4
        tile = at // TILE
        left = at % TILE
        is_k = tile // KV_HEADS % 2 == 0
        token = tl.where(is_k, left % (CPU_TOKENS // 2), left // (DIM // 2)) * 2
        pair = tl.where(is_k, left // (CPU_TOKENS // 2), left % (DIM // 2))
        own_page = tl.load(pages + page * RATIO + token // PAGE, mask=inside, other=0).to(tl.int64)
        first = pool + own_page * page_stride + first_pool + tile * (PAGE * DIM // 2) + token % PAGE * (DIM // 2) + pair
        second = first + DIM // 2
        if INTO_POOL:
            word = tl.load(buffer, mask=inside, other=0)
            low = word.to(tl.uint32)
            high = (word.to(tl.uint64) >> 32).to(tl.uint32)
            a = tl.where(is_k, low, (low & 0xFFFF) | (high << 16))
            b = tl.where(is_k, high, (low >> 16) | (high & 0xFFFF0000))
            tl.store(first, a.to(tl.int32, bitcast=True), mask=inside)
            tl.store(second, b.to(tl.int32, bitcast=True), mask=inside)
        else:
            a = tl.load(first, mask=inside, other=0).to(tl.uint32, bitcast=True)
            b = tl.load(second, mask=inside, other=0).to(tl.uint32, bitcast=True)
            low = tl.where(is_k, a, (a & 0xFFFF) | (b << 16))
            high = tl.where(is_k, b, (a >> 16) | (b & 0xFFFF0000))
            word = (low.to(tl.uint64) | (high.to(tl.uint64) << 32)).to(tl.int64, bitcast=True)
            tl.store(buffer, word, mask=inside)
    keyed = word.to(tl.uint64, bitcast=True) * _word_key(first_word + at)
    tl.atomic_add(sums + page, tl.sum(tl.where(inside, keyed, 0).to(tl.int64, bitcast=True), 0), sem="relaxed")


def launches(
    pool: torch.Tensor,
    shape: GpuPageShape,
    pages: torch.Tensor,
    first_layer: int,
    layers: int,
    data: torch.Tensor,
    sums: torch.Tensor,
    cpu_page_tokens: int,
    *,
    into_pool: bool,
) -> Iterator[Launch]:
    count, ratio = check_rank("pages", pages, 2)
    if cpu_page_tokens and (shape.fp8 or shape.other_bytes or cpu_page_tokens % shape.page_tokens):
        raise KernelError(f"cpu_page_tokens: {cpu_page_tokens} does not fit pages of layout {shape.name}")
    if ratio != (cpu_page_tokens // shape.page_tokens if cpu_page_tokens else 1):
        raise KernelError(f"pages: {ratio} pages of {shape.page_tokens} tokens do not make one page of the buffer")
    if layers < 1 or first_layer < 0 or first_layer + layers > shape.layers:
        raise KernelError(f"first_layer, layers: {first_layer} and {layers} do not lie within {shape.layers}")
    shape.check_pool(pool)
    check("pages", pages, torch.int32, (count, ratio))
    check("data", data, torch.uint8, (count, span_bytes(shape, layers, cpu_page_tokens)))
    check("sums", sums, torch.int64, (count,))
    if not cpu_page_tokens:
        first_byte = shape.layer_byte(first_layer)
        yield _plain(pool, shape.page_bytes, first_byte, pages.view(-1), data, sums, into_pool=into_pool)
        return
    words, layer_words = data.shape[1] // 8, ratio * shape.layer_bytes // 8
    yield Launch(
        name=f"{'scatter' if into_pool else 'gather'} {shape.name} converting",
        kernel=_move,
        grid=(count, blocks(words, BLOCK), 1),
        arguments={
            "pool": pool.view(torch.int32), "pages": pages, "data": data.view(torch.int64),
            "sums": sums, "words": words, "first_word": first_layer * layer_words,
            "first_pool": shape.layer_byte(first_layer) // 4, "page_stride": shape.page_bytes // 4,
        },
        constants={
            "INTO_POOL": into_pool, "CPU_TOKENS": cpu_page_tokens, "RATIO": ratio, "PAGE": shape.page_tokens,
            "KV_HEADS": shape.kv_heads, "DIM": shape.dim, "BLOCK": BLOCK,
        },
        warps=8,  # with 4 warps some releases of the assembler spill registers
    )  # fmt: skip


def _plain(
    pool: torch.Tensor,
    page_bytes: int,
    first_byte: int,
    pages: torch.Tensor,
    data: torch.Tensor,
    sums: torch.Tensor,
    *,
    into_pool: bool,
) -> Launch:
    (count,), (_, length) = check_rank("pages", pages, 1), check_rank("data", data, 2)
    if pool.dtype != torch.uint8 or pool.dim() != 1 or not pool.is_contiguous() or pool.numel() % page_bytes:
        raise KernelError(f"pool: must be contiguous uint8, a multiple of {page_bytes} bytes long")
    if first_byte % 8 or length % 8 or page_bytes % 8 or not 0 <= first_byte < first_byte + length <= page_bytes:
        raise KernelError(
            f"first_byte, data: {length} bytes from {first_byte} on are not whole words of a page of {page_bytes} bytes"
        )
    check("pages", pages, torch.int32, (count,))
    check("data", data, torch.uint8, (count, length))
    check("sums", sums, torch.int64, (count,))
    return Launch(
        name=f"{'write' if into_pool else 'read'} spans",
        kernel=_move,
        grid=(count, blocks(length // 8, BLOCK), 1),
        arguments={
            "pool": pool.view(torch.int64), "pages": pages, "data": data.view(torch.int64), "sums": sums,
            "words": length // 8, "first_word": first_byte // 8, "first_pool": first_byte // 8,
            "page_stride": page_bytes // 8,
        },
        constants={
            "INTO_POOL": into_pool, "CPU_TOKENS": 0, "RATIO": 1, "PAGE": 1, "KV_HEADS": 1, "DIM": 4, "BLOCK": BLOCK,
        },
    )  # fmt: skip
