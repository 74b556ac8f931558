"""How close a kernel's result must be to its float64 reference."""

import torch

from baton_kernels.triton.launch import INTERPRETED

# A bf16 result is off by 2^-9 at most; in Triton's interpreter, which truncates instead of rounding, by 2^-8.
BF16 = 4.5e-3 if INTERPRETED else 2.5e-3
FP32 = 2e-6


def agree(got: torch.Tensor, expected: torch.Tensor, most: float) -> None:
    """Raises AssertionError if the relative error in the norm exceeds `most`; NaN never agrees."""
    got, expected = got.detach().cpu().double(), expected.detach().cpu().double()
    error = float((got - expected).norm() / expected.norm())
    assert error <= most, f"relative error {error:.2e}, allowed are {most:.2e}"


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
