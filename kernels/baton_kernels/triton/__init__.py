"""Baton's GPU kernels in Triton, for the class `cuda-sm…`: one file per idea, each with a checked public function,
the body, a plain-torch reference and a table of shapes.

Public functions take preallocated outputs and keep lengths on the device: no call waits for the GPU, grids depend on
the shapes of the arguments only, so a step can be captured as a CUDA graph. A row's bits never depend on the batch,
the chunking or the number of splits. Importing this package imports triton; importing `baton_kernels` does not."""

from baton_kernels.triton.activation import swiglu
from baton_kernels.triton.attention import attend
from baton_kernels.triton.layout import GpuPageShape
from baton_kernels.triton.likeliest import top_logprobs
from baton_kernels.triton.norm import rmsnorm
from baton_kernels.triton.products import product, product_gated
from baton_kernels.triton.rotary import rotate_write
from baton_kernels.triton.sampling import sample
from baton_kernels.triton.speculation import verify
from baton_kernels.triton.transfer import gather, read_spans, scatter, write_spans

__all__ = [
    "GpuPageShape",
    "attend",
    "gather",
    "product",
    "product_gated",
    "read_spans",
    "rmsnorm",
    "rotate_write",
    "sample",
    "scatter",
    "swiglu",
    "top_logprobs",
    "verify",
    "write_spans",
]
