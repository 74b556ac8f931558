"""The sabotage's means: the chosen bit is one of a key that matters, and the wrong product is wrong in a batch only."""

from pathlib import Path

import numpy as np
import pytest

import baton_kernels
from cli.verify.reference import PAGE_TOKENS, on_cpu
from cli.verify.requests import VerifyRequest
from engine.builtin import tiny
from engine.cpu.runner import CpuRunner
from engine.loading.loaded import load_model
from engine.model.page_memory import layer_bytes
from engine.step.plan import Piece, Plan
from mesh.messages.jobs import Sampling
from tests.sabotage.faults import LEAST_WEIGHT, Damage, Fault, choose_damage
from tests.sabotage.wrong_product import doubled_scale, split_by_batch

GREEDY = Sampling(temperature=0.0, max_tokens=2, top_logprobs=3)
PROMPT = tuple(range(10, 80))


@pytest.mark.parametrize(("path", "kv"), [("pairs", "auto"), ("fp32", "auto"), ("pairs", "int8")])
@pytest.mark.parametrize("page_tokens", [16, 64])
@pytest.mark.parametrize("family", ["llama3", "qwen3"])
def test_the_damaged_bit_changes_a_finite_key_and_the_next_rows_logits(
    tmp_path: Path, family: str, page_tokens: int, path: str, kv: str
) -> None:
    folder = tiny(tmp_path / "model", family, dtype="bf16")
    model = load_model(folder, tmp_path / "cache", product_path=path, page_tokens=PAGE_TOKENS, kv_dtype=kv)
    reference = on_cpu(model, most_slots=96, threads=1)
    first = reference.answer(VerifyRequest(PROMPT, GREEDY))[0].token
    size = layer_bytes(model.weights, page_tokens)
    pool = np.zeros(6 * model.weights.config.layers * size, np.uint8)
    runner = CpuRunner(model.weights, pool_buffer=pool, page_tokens=page_tokens, threads=1)
    pages = (3, 1, 5, 0, 2)
    runner.compute_logits(Plan(0, (Piece(0, PROMPT, 0, pages, 1, 0, GREEDY),)))
    row = Plan(1, (Piece(0, (first,), len(PROMPT), pages, 1, 1, GREEDY),))
    (clean,) = runner.compute_logits(row)
    for seed in range(8):
        damage = choose_damage(model.weights, PROMPT, first, page_tokens=page_tokens, seed=seed)
        assert damage.weight >= LEAST_WEIGHT and damage.page < -(-len(PROMPT) // page_tokens)
        place = pages[damage.page] * model.weights.config.layers * size + damage.offset
        assert damage.offset < size // 2, "values lie behind the keys"
        pool[place] ^= damage.mask
        (spoilt,) = runner.compute_logits(row)
        pool[place] ^= damage.mask
        assert np.isfinite(spoilt).all()
        assert (spoilt.view(np.uint32) != clean.view(np.uint32)).any(), f"seed {seed} shows nowhere"
    (again,) = runner.compute_logits(row)
    assert (again.view(np.uint32) == clean.view(np.uint32)).all()
    runner.close()
    reference.close()


@pytest.mark.parametrize("path", ["pairs", "fp32"])
def test_the_wrong_product_is_right_for_one_row_and_wrong_for_two(path: str) -> None:
    rng = np.random.default_rng(1)
    x, weight = rng.standard_normal((2, 64), np.float32), rng.standard_normal((48, 64), np.float32)
    source = weight if path == "fp32" else (weight.view(np.uint32) >> 16).astype(np.uint16)
    packed = np.empty(baton_kernels.pack_bytes(path, 48, 64), np.uint8)
    baton_kernels.pack(path, np.ascontiguousarray(source), packed)
    right, one, two = np.empty((2, 48), np.float32), np.empty((1, 48), np.float32), np.empty((2, 48), np.float32)
    baton_kernels.product(x, packed, right)
    split_by_batch(x[:1], packed, one)
    split_by_batch(x, packed, two)
    assert (one.view(np.uint32) == right[:1].view(np.uint32)).all()
    assert (two.view(np.uint32) != right.view(np.uint32)).any()
    assert np.allclose(two, right, atol=1e-4)


def test_the_wrong_scale_changes_one_output_of_an_integer_form_only() -> None:
    rng = np.random.default_rng(1)
    x, weight = rng.standard_normal((3, 64), np.float32), rng.standard_normal((48, 64), np.float32)
    form = baton_kernels.MatrixForm("int8")
    values, scales = (weight * 40).clip(-127, 127).astype(np.int8), np.full(48, 0.1, np.float32)
    packed = np.empty(form.header(48, 64).bytes, np.uint8)
    baton_kernels.pack_integers(baton_kernels.Integers(form, values, scales), packed)
    right, wrong = np.empty((3, 48), np.float32), np.empty((3, 48), np.float32)
    baton_kernels.product(x, packed, right)
    doubled_scale(x, packed, wrong)
    assert (wrong[:, 0] == 2 * right[:, 0]).all() and (wrong[:, 1:] == right[:, 1:]).all()


def test_a_fault_survives_its_file(tmp_path: Path) -> None:
    damage = Damage(prompt=(1, 2, 3), page=0, offset=17, mask=128, weight=0.25)
    for fault in (Fault(), Fault(split_product=True), Fault(wrong_scale=True), Fault(damages=(damage,), checks=False)):
        assert Fault.read(fault.write(tmp_path / "fault.json")) == fault
