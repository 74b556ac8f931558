"""Baton's CPU kernels: exact matrix products, paged attention, sampling and page copies over plain numpy arrays.

One recipe per product path, carried out by several bodies with equal bits; a row's result never depends on the batch,
the chunking, the page size or the number of threads. Importing never compiles: see `available`."""

from baton_kernels import draft, experts, layer
from baton_kernels.arrays import PATHS
from baton_kernels.forms import MatrixForm, form_of, most_segments, panels, parts, shape_of, stack, stacked_bytes
from baton_kernels.library import KERNEL_VERSION, LAYOUT_VERSION, KernelError, available
from baton_kernels.machine import bodies, choose, chosen, has_tiles, not_built, product_bodies, set_threads, threads
from baton_kernels.paged import KV, OWN, attention, kv_index, layer_bytes, rotate_write, tiles
from baton_kernels.pages import checksum, checksums, copy_page, scatter
from baton_kernels.products import (
    Integers,
    activated,
    activation_index,
    between,
    embed,
    gated,
    pack,
    pack_bytes,
    pack_integers,
    product,
)
from baton_kernels.rows import add, cap, clip, layernorm, rmsnorm, rmsnorm_within, share_latent
from baton_kernels.sampling import Drawn, sample
from baton_kernels.selftest import self_test

__all__ = [
    "KERNEL_VERSION",
    "KV",
    "LAYOUT_VERSION",
    "OWN",
    "PATHS",
    "Drawn",
    "MatrixForm",
    "Integers",
    "KernelError",
    "activated",
    "activation_index",
    "add",
    "attention",
    "available",
    "between",
    "bodies",
    "cap",
    "checksum",
    "checksums",
    "choose",
    "chosen",
    "clip",
    "copy_page",
    "draft",
    "embed",
    "experts",
    "form_of",
    "gated",
    "has_tiles",
    "kv_index",
    "layer",
    "layer_bytes",
    "layernorm",
    "most_segments",
    "not_built",
    "pack",
    "pack_bytes",
    "pack_integers",
    "panels",
    "parts",
    "product",
    "product_bodies",
    "rmsnorm",
    "rmsnorm_within",
    "rotate_write",
    "sample",
    "scatter",
    "self_test",
    "set_threads",
    "shape_of",
    "share_latent",
    "stack",
    "stacked_bytes",
    "threads",
    "tiles",
]
