"""Norm, activation, rotary with page write, products, transfer and verification of drafts, over tables of shapes."""

import pytest
import torch
import triton
import triton.language as tl

from baton_kernels.library import KernelError
from baton_kernels.triton import activation, norm, products, rotary, speculation, transfer
from baton_kernels.triton.cases import products as product_cases
from baton_kernels.triton.cases import rows as cases
from baton_kernels.triton.cases import transfer as transfer_cases
from baton_kernels.triton.cases.agree import same_bits
from baton_kernels.triton.fp8 import narrow, widen
from baton_kernels.triton.launch import ARCHITECTURES, Launch
from baton_kernels.triton.layout import GpuPageShape


@pytest.mark.parametrize("shape", products.SHAPES, ids=str)
def test_products_agree_with_their_reference(shape):
    product_cases.check(*shape, "cpu")


@pytest.mark.parametrize("shape", products.SHAPES, ids=str)
def test_gated_products_agree_with_their_reference(shape):
    product_cases.check_gated(*shape, "cpu")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_configuration_of_a_product_gives_a_row_the_same_bits(architecture):
    x, weight = product_cases.inputs(70, 80, 200, "cpu")
    expected = None
    for rows in (1, 16, 17, 40, 70):
        out = torch.full((rows, 80), torch.nan)
        for launch in products.launches(architecture, x[:rows].contiguous(), weight, out, None, None, gated=False):
            launch.run()
        expected = out[0] if expected is None else expected
        assert same_bits(out[0], expected)


def test_products_refuse_what_they_cannot_load():
    x, weight = product_cases.inputs(2, 8, 12, "cpu")
    with pytest.raises(KernelError, match="multiple of 8"):
        products.product(x, weight, out=torch.empty(2, 8))
    x, weight = product_cases.inputs(2, 8, 16, "cpu")
    with pytest.raises(KernelError, match=r"x: is torch\.float32"):
        products.product(x.float(), weight, out=torch.empty(2, 8))
    with pytest.raises(KernelError, match="out"):
        products.product(x, weight, out=torch.empty(2, 9))


@pytest.mark.parametrize("shape", norm.SHAPES, ids=str)
def test_norms_agree_with_their_reference(shape):
    cases.check_norm(*shape, "cpu")


@pytest.mark.parametrize("shape", activation.SHAPES, ids=str)
def test_activations_agree_with_their_reference(shape):
    cases.check_swiglu(*shape, "cpu")


@pytest.mark.parametrize("shape", rotary.SHAPES, ids=str)
def test_rotary_writes_exactly_the_rows_places(shape):
    cases.check_rotary(*shape, "cpu")


@pytest.mark.parametrize("shape", speculation.SHAPES, ids=str)
def test_drafts_are_kept_while_they_are_what_the_target_drew(shape):
    cases.check_verify(*shape, "cpu")


@pytest.mark.parametrize("shape", transfer.SHAPES, ids=str)
def test_pages_travel_whole_with_the_checksum_of_the_cpu_kernels(shape):
    transfer_cases.check(*shape, "cpu")


def test_a_transfer_refuses_layouts_that_do_not_go_together():
    shape, pages = GpuPageShape(2, 2, 32, 16, "fp8"), torch.zeros(1, 2, dtype=torch.int32)
    pool, sums = torch.zeros(shape.page_bytes * 2, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64)
    with pytest.raises(KernelError, match="cpu_page_tokens"):
        transfer.gather(pool, shape, pages, first_layer=0, layers=1, out=pool, sums=sums, cpu_page_tokens=32)
    with pytest.raises(KernelError, match="layers"):
        transfer.gather(pool, shape, pages[:, :1], first_layer=1, layers=2, out=pool, sums=sums)


@triton.jit
def _round_trip(x, bytes_out, wide_out):
    at = tl.arange(0, 4096)
    byte = narrow(tl.load(x + at))
    tl.store(bytes_out + at, byte)
    tl.store(wide_out + at, widen(byte))


def test_eight_bit_floats_are_rounded_as_torch_rounds_them():
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    every = every[~every.isnan()]
    middles = (every[1:126] + every[:125]) / 2  # between neighbours: ties go to the even one
    random = (torch.rand(4096, generator=torch.Generator().manual_seed(1)) * 2 - 1) * 448
    x = torch.cat([every, middles, -middles, random])[:4096].contiguous()
    narrowed, widened = torch.zeros(4096, dtype=torch.uint8), torch.zeros(4096, dtype=torch.bfloat16)
    Launch("round trip", _round_trip, (1, 1, 1), {"x": x, "bytes_out": narrowed, "wide_out": widened}, {}).run()
    expected = x.to(torch.float8_e4m3fn)
    assert torch.equal(narrowed, expected.view(torch.uint8))
    assert torch.equal(widened.float(), expected.float())


@pytest.mark.parametrize("share", [(32, 64), (128, 64), (-64, 64), (0, 96)])
def test_a_share_of_a_page_that_cannot_be_is_refused(share):
    with pytest.raises(KernelError, match=r"first_byte, other_bytes: .* multiples of 64 that fit"):
        GpuPageShape(2, 1, 32, 16, "bf16", *share)
