"""Models with experts, one of them with latent attention, one with sinks and windows, as real processes: a mesh of both
tiers gives the bits of the engine alone."""

import shutil
from pathlib import Path

import pytest
import torch

from cli.verify.answers import compare
from cli.verify.outcomes import run_cell
from cli.verify.reference import PAGE_TOKENS, on_cpu
from engine.builtin import tiny
from engine.loading.loaded import load_model
from tests.families.folders import saved
from tests.mesh.test_integers import requests

pytestmark = pytest.mark.mesh


def with_latents(folder: Path) -> Path:
    """A model with latent attention, and the tokenizer of the tiny models."""
    saved(folder, "deepseek_v2", {"max_position_embeddings": 512}, dtype=torch.bfloat16)
    for path in tiny(folder.parent / "words", "llama3").iterdir():
        if not (folder / path.name).exists() and path.suffix != ".safetensors":
            shutil.copy(path, folder)
    return folder


@pytest.mark.parametrize(
    ("family", "quantize"), [("qwen3_moe", ""), ("qwen3_moe", "int8"), ("deepseek_v2", ""), ("gpt_oss", "")]
)
async def test_a_mesh_with_experts_gives_the_bits_of_the_engine_alone(
    family: str, quantize: str, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    model = tiny(model, family, dtype="bf16") if family != "deepseek_v2" else with_latents(model)
    loaded = load_model(model, tmp_path, product_path="auto", page_tokens=PAGE_TOKENS, quantize=quantize)
    alone = on_cpu(loaded, most_slots=512, threads=1)
    overrides = {
        "cache_folder": str(tmp_path),
        "mesh.prefill_workers": "1",
        "mesh.decode_workers": "1",
        "gateway.local": "never",
        "worker.quantize": quantize,
        "worker.chunk_tokens": "24",
        "worker.threads": "1",
        "worker.speculation": "off",
    }
    try:
        found = await run_cell(overrides, requests(), batch=4, folder=model)
        expected = alone.answers(requests())
    finally:
        alone.close()
    assert [compare(*pair) for pair in zip(expected, found.answers, strict=True) if compare(*pair)] == []
    assert found.remote == len(expected) and found.bytes_moved > 0
