"""Every launch that the gate compiles: the kernels' own launch plans over tensors without memory, for models in use.

The public functions run these same plans, so every configuration that exists is compiled. The small gate takes the
first configuration of each kernel."""

from collections.abc import Iterator
from typing import Any

import torch

from baton_kernels.triton import (
    activation,
    attention,
    likeliest,
    norm,
    products,
    rotary,
    sampling,
    speculation,
    transfer,
)
from baton_kernels.triton.launch import Launch
from baton_kernels.triton.layout import GpuPageShape

ROWS, SEQUENCES, PAGES, VOCAB = 64, 64, 512, 128256
PREFILL_ROWS = 8192
HEADS = ((32, 8, 128), (14, 2, 64), (32, 32, 96), (16, 2, 256))  # query heads, KV heads, dim


def launches(architecture: int) -> Iterator[Launch]:
    """Every launch once: many calls share a program."""
    seen = set()
    for launch in _all(architecture):
        key = (launch.name, launch.kernel.__name__, *sorted(launch.constants.items()), launch.warps, launch.stages)
        if key not in seen:
            seen.add(key)
            yield launch


def one_each(architecture: int) -> Iterator[Launch]:
    """The first configuration of every kernel, and for attention one of decode and one of prefill."""
    seen = set()
    for launch in launches(architecture):
        kind = (launch.kernel, launch.constants.get("ACROSS"), launch.constants.get("GATED"))
        if kind not in seen:
            seen.add(kind)
            yield launch


def _all(architecture: int) -> Iterator[Launch]:
    yield from _attention(architecture)
    yield from _products(architecture)
    yield from _rows()
    yield from _sampling()
    yield from _transfer()


def empty(*shape: int, dtype: Any = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _ints(*shape: int) -> torch.Tensor:
    return empty(*shape, dtype=torch.int32)


def _attention(architecture: int) -> Iterator[Launch]:
    for heads, kv_heads, dim in HEADS:
        if dim > 128 and architecture == 100:
            continue  # the kernels refuse it on that architecture
        for kv_type in ("bf16", "fp8") if dim <= 128 else ("bf16",):
            for page_tokens in (16, 64) if dim == 128 else (16,):
                shape = GpuPageShape(2, kv_heads, dim, page_tokens, kv_type)
                partials = empty(attention.partial_floats(ROWS, heads, dim, PAGES, page_tokens))
                for rows, most_rows, room in (
                    (ROWS, 1, partials),
                    (ROWS, 4, partials),
                    (ROWS, 16, partials),  # with many heads of one KV head: several tiles
                    (PREFILL_ROWS, PREFILL_ROWS, None),
                ):
                    yield from attention.launches(
                        architecture,
                        empty(rows, heads, dim, dtype=torch.bfloat16),
                        empty(shape.page_bytes * 8, dtype=torch.uint8),
                        shape,
                        1,
                        _ints(SEQUENCES, PAGES),
                        _ints(SEQUENCES),
                        _ints(SEQUENCES),
                        _ints(SEQUENCES),
                        dim**-0.5,
                        empty(rows, heads * dim, dtype=torch.bfloat16),
                        most_rows,
                        room,
                    )


def _products(architecture: int) -> Iterator[Launch]:
    n = k = 4096
    for rows in (config.rows for config in products.CONFIGS[architecture]):
        x, weight = empty(rows, k, dtype=torch.bfloat16), empty(n, k, dtype=torch.bfloat16)
        out, bias = empty(rows, n), empty(n)
        for more in ((None, None), (bias, None), (None, out), (bias, out)):
            yield from products.launches(architecture, x, weight, out, *more, gated=False)
        half = empty(rows, n, dtype=torch.bfloat16)
        yield from products.launches(architecture, x, weight, half, None, None, gated=False)
    for rows in (config.rows for config in products.CONFIGS_GATED[architecture]):
        x, half = empty(rows, k, dtype=torch.bfloat16), empty(rows, n, dtype=torch.bfloat16)
        both = empty(2 * n, k, dtype=torch.bfloat16)
        yield from products.launches(architecture, x, both, half, None, None, gated=True)


def _rows() -> Iterator[Launch]:
    for hidden in (4096, 896, 8192):
        x, out = empty(ROWS, hidden), empty(ROWS, hidden, dtype=torch.bfloat16)
        for delta in (None, empty(ROWS, hidden)):
            yield from norm.launches(x, empty(hidden), 1e-6, out, delta)
    yield from activation.launches(empty(ROWS, 2 * 14336), empty(ROWS, 14336, dtype=torch.bfloat16))
    for heads, kv_heads, dim in HEADS:
        for kv_type in ("bf16", "fp8") if dim <= 128 else ("bf16",):
            shape = GpuPageShape(2, kv_heads, dim, 16, kv_type)
            for weight in (None, empty(dim)):
                yield from rotary.launches(
                    empty(ROWS, (heads + 2 * kv_heads) * dim),
                    empty(4096, dim // 2),
                    empty(4096, dim // 2),
                    _ints(ROWS),
                    _ints(ROWS),
                    _ints(SEQUENCES, PAGES),
                    empty(shape.page_bytes * 8, dtype=torch.uint8),
                    shape,
                    1,
                    empty(ROWS, heads, dim, dtype=torch.bfloat16),
                    weight,
                    weight,
                    1e-6,
                )


def _sampling() -> Iterator[Launch]:
    for vocab in (VOCAB, 32000):
        logits, one, whole = empty(ROWS, vocab), empty(ROWS), _ints(ROWS)
        for allowed in (None, _ints(ROWS, -(-vocab // 32))):
            yield from sampling.launches(
                logits, one, whole, one, one, empty(ROWS, dtype=torch.int64), whole, whole,
                empty(sampling.scratch_floats(ROWS, vocab)), whole, one, one, allowed,
            )  # fmt: skip
        yield from likeliest.launches(logits, one, whole, _ints(ROWS, 20), empty(ROWS, 20))
    for most in (4, 8):
        yield from speculation.launches(
            _ints(ROWS), _ints(SEQUENCES, most), _ints(SEQUENCES), _ints(SEQUENCES), _ints(SEQUENCES), _ints(SEQUENCES)
        )


def _transfer() -> Iterator[Launch]:
    for shape, cpu_page_tokens in (
        (GpuPageShape(32, 8, 128), 0),
        (GpuPageShape(32, 8, 128, 16, "fp8"), 0),
        (GpuPageShape(32, 8, 128), 32),
        (GpuPageShape(24, 2, 64), 32),
    ):
        ratio = cpu_page_tokens // shape.page_tokens if cpu_page_tokens else 1
        for into_pool in (False, True):
            yield from transfer.launches(
                empty(shape.page_bytes * 8, dtype=torch.uint8),
                shape,
                _ints(4, ratio),
                2,
                4,
                empty(4, transfer.span_bytes(shape, 4, cpu_page_tokens), dtype=torch.uint8),
                empty(4, dtype=torch.int64),
                cpu_page_tokens,
                into_pool=into_pool,
            )
