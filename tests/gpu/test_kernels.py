"""Every kernel on a real GPU over the same tables of shapes as in the interpreter."""

import pytest

from baton_kernels.triton import activation, attention, norm, products, rotary, speculation, transfer
from baton_kernels.triton.cases import attention as attention_cases
from baton_kernels.triton.cases import products as product_cases
from baton_kernels.triton.cases import rows as row_cases
from baton_kernels.triton.cases import transfer as transfer_cases

LARGE = (
    attention.AttentionShape(32, 8, 128, 16, "bf16", (3000, 0, 1023), (3, 300, 2)),
    attention.AttentionShape(32, 8, 128, 16, "fp8", (3000, 0, 1023), (3, 300, 2)),
)


@pytest.mark.parametrize("across", [False, True], ids=["prefill", "decode"])
@pytest.mark.parametrize("case", (*attention.SHAPES, *LARGE), ids=str)
def test_attention_agrees_with_its_reference_and_reads_no_unused_place(case, across, device):
    attention_cases.check(case, device, across=across)


@pytest.mark.parametrize("shape", (*products.SHAPES, (1, 4096, 4096), (200, 6144, 4096)), ids=str)
def test_products_agree_with_their_reference(shape, device):
    product_cases.check(*shape, device)


@pytest.mark.parametrize("shape", (*products.SHAPES, (64, 14336, 4096)), ids=str)
def test_gated_products_agree_with_their_reference(shape, device):
    product_cases.check_gated(*shape, device)


@pytest.mark.parametrize("shape", norm.SHAPES, ids=str)
def test_norms_agree_with_their_reference(shape, device):
    row_cases.check_norm(*shape, device)


@pytest.mark.parametrize("shape", activation.SHAPES, ids=str)
def test_activations_agree_with_their_reference(shape, device):
    row_cases.check_swiglu(*shape, device)


@pytest.mark.parametrize("shape", rotary.SHAPES, ids=str)
def test_rotary_writes_exactly_the_rows_places(shape, device):
    row_cases.check_rotary(*shape, device)


@pytest.mark.parametrize("shape", speculation.SHAPES, ids=str)
def test_drafts_are_kept_while_they_are_what_the_target_drew(shape, device):
    row_cases.check_verify(*shape, device)


@pytest.mark.parametrize("shape", transfer.SHAPES, ids=str)
def test_pages_travel_whole_with_the_checksum_of_the_cpu_kernels(shape, device):
    transfer_cases.check(*shape, device)
