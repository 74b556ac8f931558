"""Moves pages out of a pool and back, in their own layout and in that of the CPU kernels, with the CPU's checksums."""

import torch

from baton_kernels import reference as cpu_reference
from baton_kernels.triton import transfer
from baton_kernels.triton.layout import GpuPageShape

PAGES, COUNT, FIRST_LAYER, LAYERS = 9, 2, 1, 2


def check(page_tokens: int, kv_heads: int, dim: int, kv_type: str, cpu_page_tokens: int, device: str) -> None:
    draw = torch.Generator().manual_seed(dim)
    shape = GpuPageShape(3, kv_heads, dim, page_tokens, kv_type)
    ratio = cpu_page_tokens // page_tokens if cpu_page_tokens else 1
    pool = torch.randint(0, 256, (PAGES, shape.page_bytes), generator=draw, dtype=torch.uint8)
    pages = torch.randperm(PAGES, generator=draw)[: COUNT * ratio].view(COUNT, ratio).int()
    data = torch.zeros(COUNT, transfer.span_bytes(shape, LAYERS, cpu_page_tokens), dtype=torch.uint8, device=device)
    sums = torch.ones(COUNT, dtype=torch.int64, device=device)
    what = {"first_layer": FIRST_LAYER, "layers": LAYERS, "cpu_page_tokens": cpu_page_tokens}
    transfer.gather(pool.flatten().to(device), shape, pages.to(device), out=data, sums=sums, **what)
    for at, own in enumerate(pages):
        span = _expected(pool, shape, own, converted=bool(cpu_page_tokens))
        assert torch.equal(data[at].cpu(), span), "the buffer holds other bytes"
        assert int(sums[at]) % 2**64 == cpu_reference.checksum(span.numpy().tobytes(), ratio * shape.layer_bytes // 8)
    back, sums_back = torch.zeros_like(pool).flatten().to(device), torch.zeros_like(sums)
    transfer.scatter(data, back, shape, pages.to(device), sums=sums_back, **what)
    assert torch.equal(sums_back, sums)
    expected = torch.zeros(PAGES, 3, shape.layer_bytes, dtype=torch.uint8)
    for page in pages.flatten().tolist():
        expected[page, FIRST_LAYER:] = pool[page].view(3, -1)[FIRST_LAYER:]
    assert torch.equal(back.cpu(), expected.flatten()), "the pool holds other bytes, or more pages were written"


def _expected(pool: torch.Tensor, shape: GpuPageShape, own: torch.Tensor, *, converted: bool) -> torch.Tensor:
    layers = pool.view(PAGES, 3, -1)[own.long(), FIRST_LAYER:]  # [ratio, layers, bytes]
    if not converted:
        return layers.flatten()
    tiles = layers.view(torch.int16).unflatten(2, (2, shape.kv_heads, shape.page_tokens, shape.dim))
    joined = tiles.permute(1, 2, 3, 0, 4, 5).flatten(3, 4)  # [layers, 2, kv_heads, tokens, dim]
    return torch.cat([transfer.to_cpu_layout(layer) for layer in joined]).view(torch.uint8)
