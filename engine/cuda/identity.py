"""Which bits a GPU computes: its numerics class, and the fingerprint of our kernels' results on this very device.

The self-test also computes one row alone, in a batch and beside other rows. A device or compiler on which the row's
bits differ never serves as exact. The vendor's path makes no such promise, so only its results are hashed."""

import hashlib
from collections.abc import Iterator

import numpy as np
import torch

import baton_kernels
from baton_kernels import KernelError
from baton_kernels import triton as kernels
from baton_kernels.fixed import numbers
from baton_kernels.triton.attention import partial_floats
from baton_kernels.triton.sampling import scratch_floats
from engine.cuda.products import Products, products_for
from engine.selftest.identity import Identity

_HEADS, _KV_HEADS, _DIM, _PAGE, _N, _K = 2, 1, 16, 16, 96, 136
_BEFORE = 5  # slots in front of the row that is compared
_ROWS = (1, 3, 18)  # alone, in one tile, in two


def identify(model_hash: str, path: str, device: torch.device) -> Identity:
    """`path` is `fast` or the exact path of the device. Raises KernelError when rows change their bits in a batch."""
    parts = (
        f"model={model_hash[:32]}",
        "weights=bf16",
        "kv=bf16",
        "tp=1",
        f"path={path}",
        f"kernels={baton_kernels.KERNEL_VERSION}",
    )
    return Identity(" ".join(parts), self_test(path, device), model_hash, path)


def self_test(path: str, device: torch.device) -> str:
    digest = hashlib.blake2b(f"{path} {baton_kernels.KERNEL_VERSION}".encode(), digest_size=16)
    products = products_for(path)
    expected: list[torch.Tensor] | None = None
    for rows in _ROWS:
        results = [result.cpu() for result in (*_products(products, rows, device), *_layer(rows, device))]
        first = [result[:1].contiguous().view(torch.uint8) for result in results]
        if expected is not None and path != "fast" and not all(map(torch.equal, first, expected)):
            raise KernelError(f"self-test of path {path!r} failed: a row beside {rows - 1} others has other bits")
        expected = expected or first
        for result in results:
            digest.update(result.contiguous().view(torch.uint8).numpy().tobytes())
    digest.update(_sampled(device).numpy().tobytes())
    return digest.hexdigest()


def _tensor(seed: int, *shape: int, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(numbers(seed, *shape)).to(device)


def _products(products: Products, rows: int, device: torch.device) -> Iterator[torch.Tensor]:
    x = _tensor(1, _ROWS[-1], _K, device=device).bfloat16()[:rows].contiguous()
    bias, residual = _tensor(3, _N, device=device), _tensor(4, _ROWS[-1], _N, device=device)[:rows].contiguous()
    out, gated = torch.empty_like(residual), torch.empty(rows, _N, dtype=torch.bfloat16, device=device)
    products.product(x, _tensor(2, _N, _K, device=device).bfloat16(), out, bias, residual)
    products.gated(x, _tensor(5, 2 * _N, _K, device=device).bfloat16(), gated)
    normed = torch.empty_like(gated)
    kernels.rmsnorm(out, bias, 1e-6, out=normed)
    yield from (out, gated, normed)


def _layer(rows: int, device: torch.device) -> Iterator[torch.Tensor]:
    """One attention layer. Row 0 is the last token of a text, alone or in front of the rows of a prompt."""
    shape = kernels.GpuPageShape(1, _KV_HEADS, _DIM, _PAGE)
    pool = torch.zeros(8 * shape.page_bytes, dtype=torch.uint8, device=device)
    width = (_HEADS + 2 * _KV_HEADS) * _DIM
    angles = numbers(6, 64, _DIM // 2)
    cos = torch.from_numpy(np.sqrt(np.float32(1.1) - angles * angles * np.float32(0.25))).to(device)
    sin, norm = torch.from_numpy(angles).to(device), _tensor(8, _DIM, device=device)
    tables = torch.tensor([[2, 0], [1, 3]], dtype=torch.int32, device=device)

    def written(qkv: torch.Tensor, slots: list[int], sequence: list[int]) -> torch.Tensor:
        q = torch.empty(len(slots), _HEADS, _DIM, dtype=torch.bfloat16, device=device)
        where, whose = (torch.tensor(values, dtype=torch.int32, device=device) for values in (slots, sequence))
        kernels.rotate_write(
            qkv, cos, sin, where, whose, tables, pool, shape, 0, q_out=q, q_norm=norm, k_norm=norm
        )  # fmt: skip
        return q

    written(_tensor(7, _BEFORE, width, device=device), list(range(_BEFORE)), [0] * _BEFORE)
    mine = _tensor(9, _ROWS[-1], width, device=device)[:rows].contiguous()
    q = written(mine, [_BEFORE, *range(rows - 1)], [0] + [1] * (rows - 1))
    out = torch.zeros(rows, _HEADS * _DIM, dtype=torch.bfloat16, device=device)
    lengths = torch.tensor([[_BEFORE, 0], [1, rows - 1], [0, 1]], dtype=torch.int32, device=device)
    floats = partial_floats(rows, _HEADS, _DIM, 2, _PAGE) if rows < _ROWS[-1] else 0
    partials = torch.empty(floats, device=device) if floats else None  # split, or as a prompt is computed
    kernels.attend(
        q, pool, shape, 0, tables, *lengths, scale=0.2, out=out, most_rows=max(1, rows - 1), partials=partials
    )  # fmt: skip
    yield from (q, out)


def _sampled(device: torch.device) -> torch.Tensor:
    """Sampled tokens and the bits of their logprobs."""
    rows, vocab = 4, 333
    logits = _tensor(10, rows, vocab, device=device) * 4

    def each(values: list[float], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    tokens = torch.empty(rows, dtype=torch.int32, device=device)
    logprobs, totals = torch.empty(rows, device=device), torch.empty(rows, device=device)
    kernels.sample(
        logits,
        each([0, 1, 0.7, 1.3]),
        each([0, 0, 5, 0], torch.int32),
        each([1, 1, 1, 0.8]),
        each([0, 0.1, 0, 0]),
        each([0, 1, 2, 3], torch.int64),
        each([0, 1, 2, 3], torch.int32),
        each([0, 1, 2, 3], torch.int32),
        scratch=torch.empty(scratch_floats(rows, vocab), device=device),
        tokens=tokens,
        logprobs=logprobs,
        log_totals=totals,
    )
    return torch.stack([tokens, logprobs.view(torch.int32)]).cpu()
