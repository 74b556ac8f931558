"""A `Launch` is what a public function passes to the GPU: a kernel, a grid, arguments and constants, as plain data.

A device runs the same `Launch` that Triton's interpreter runs and that `tests.gpu_gate.aot` compiles ahead of time, so
the gate examines what runs. The compiler never contracts a multiplication and an addition: a kernel that wants them
fused calls `tl.fma`, so that equal recipes give equal bits in different kernels."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton

from baton_kernels.library import KernelError
from baton_kernels.triton.interpreter import install

INTERPRETED = bool(triton.knobs.runtime.interpret)  # the choice at the time when the kernels were imported
if INTERPRETED:
    install()
ARCHITECTURES = (80, 90, 100)


@dataclass(frozen=True, slots=True)
class Launch:
    name: str  # kernel and configuration, as the gate reports them
    kernel: Any
    grid: tuple[int, int, int]
    arguments: dict[str, Any]  # tensors, tensor descriptors and numbers
    constants: dict[str, Any]
    warps: int = 4
    stages: int = 3
    registers: int | None = None  # most registers of a thread; None: the assembler chooses
    instructions: tuple[str, ...] = ()  # instructions that the generated code must contain
    family: str = ""  # launches of one family must give a row the same bits

    @property
    def options(self) -> dict[str, Any]:
        """Options of the compiler, passed beside the constants."""
        return {
            "num_warps": self.warps, "num_stages": self.stages, "maxnreg": self.registers, "enable_fp_fusion": False,
        }  # fmt: skip

    def run(self) -> None:
        if all(self.grid):
            self.kernel[self.grid](**self.arguments, **self.constants, **self.options)


def run(launches: Sequence[Launch]) -> None:
    for launch in launches:
        launch.run()


def architecture(tensor: torch.Tensor) -> int:
    """The table of configurations that a tensor's device uses: 80, 90 or 100."""
    if not tensor.is_cuda:
        if INTERPRETED:
            return 90
        raise KernelError(f"these kernels need a CUDA device, this tensor is on {tensor.device}")
    return architecture_of(tensor.device.index or 0)


@cache
def architecture_of(device: int) -> int:
    major, minor = torch.cuda.get_device_capability(device)
    if major < 8:
        raise KernelError(f"the GPU kernels need compute capability 8.0, this device has {major}.{minor}")
    return {9: 90, 10: 100}.get(major, 80)  # others have neither wgmma nor tcgen05


def check(name: str, tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Raises KernelError unless an argument has this type and shape and is contiguous; the message names the
    argument."""
    if tensor.dtype != dtype or tuple(tensor.shape) != shape or not tensor.is_contiguous():
        layout = "" if tensor.is_contiguous() else ", not contiguous"
        raise KernelError(
            f"{name}: is {tensor.dtype} {tuple(tensor.shape)}{layout}, must be contiguous {dtype} {shape}"
        )


def check_rank(name: str, tensor: torch.Tensor, dimensions: int) -> tuple[int, ...]:
    if tensor.dim() != dimensions:
        raise KernelError(f"{name}: has {tensor.dim()} dimensions, not {dimensions}")
    return tuple(tensor.shape)


def blocks(count: int, size: int) -> int:
    return -(-count // size)


def power_of_2(count: int, least: int = 1) -> int:
    """The smallest power of two that is neither below `count` nor below `least`."""
    return max(least, 1 << max(count - 1, 0).bit_length())
