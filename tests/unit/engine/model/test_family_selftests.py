"""The self-test of every family passes, and notices each kernel that only some families call."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from baton_kernels import KernelError, library, machine
from engine.selftest.run import check_draft_kernels, self_test
from engine.step.plan import Drafting, Plan
from tests.families.folders import OWN, saved

Words = Callable[..., list[int]]


@pytest.mark.parametrize(
    "family", [name for name in OWN if name not in ("llama", "mistral", "ministral", "qwen2", "qwen3")]
)
def test_the_self_test_passes_and_drafts_are_the_familys_own_tokens(
    family: str, tmp_path: Path, engine: Any, words: Words
) -> None:
    folder = saved(tmp_path / "model", family, {"num_hidden_layers": 2}, dtype=torch.bfloat16)
    for path in ("fp32", "amx", "int8") if family in ("gemma2", "starcoder2", "qwen2_moe", "gpt_oss") else ("pairs",):
        self_test(engine(folder, product_path=path).weights, 32)
    check_draft_kernels(engine(folder).weights, 32)
    ours, prompt = engine(folder, draft=folder), words(60)
    piece = ours.piece(prompt, sampled=1, drafting=Drafting(0, (), 6))
    result = ours.runner.compute(Plan(0, (piece,)))
    expected = [one.token for one in engine(folder).generate(prompt, 7)]
    assert result.sampled[0][0].token == expected[0] and list(result.proposed[0]) == expected[1:]


WRONG = {
    "layernorm": ("starcoder2", -1),  # family that computes it, and which argument is its output
    "activated": ("starcoder2", 3),
    "add": ("gemma2", 0),
    "cap": ("gemma2", 0),
    "rmsnorm_within": ("olmo2", 0),
    "clip": ("olmoe", 0),
    "route": ("qwen3_moe", 8),
    "share_latent": ("deepseek_v2", 0),
    "combine": ("qwen2_moe", 8),
}


@pytest.mark.parametrize("kernel", WRONG)
def test_a_wrong_kernel_of_a_family_keeps_its_worker_from_starting(
    kernel: str, tmp_path: Path, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, out = WRONG[kernel]
    fields = {"num_hidden_layers": 2} | ({"clip_qkv": 0.5} if family == "olmoe" else {})
    weights = engine(saved(tmp_path / "model", family, fields), product_path="fp32").weights
    right = getattr(library.load(), kernel)

    def wrong(*given: Any) -> Any:
        refused = right(*given)
        if machine.forced() != "plain":
            ctypes.c_uint32.from_address(given[out]).value ^= 1
        return refused

    monkeypatch.setattr(library.load(), kernel, wrong)
    with pytest.raises(KernelError, match="self-test"):
        self_test(weights, 32)


@pytest.mark.parametrize("part", [-3, -2])
def test_a_kernel_that_leaves_sinks_or_caps_out_keeps_its_worker_from_starting(
    part: int, tmp_path: Path, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = "gemma2" if part == -3 else "gpt_oss"
    weights = engine(saved(tmp_path / "model", family, {"num_hidden_layers": 2}), product_path="fp32").weights
    right = library.load().attention

    def without(*given: Any) -> Any:
        changed = list(given)
        changed[part] = given[part] if machine.forced() == "plain" else 0.0 if part == -3 else None
        return right(*changed)

    monkeypatch.setattr(library.load(), "attention", without)
    with pytest.raises(KernelError, match="self-test"):
        self_test(weights, 32)
