"""Models of real shapes with random weights: on the device for steps, as a folder for the mesh and for transformers.

Weights are drawn on the device, so that 16 GB take seconds. Answers are babble, but no measurement depends on them."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from engine.builtin import tiny
from engine.cuda.weights import DeviceWeights, assemble
from engine.families.rope import Rope
from engine.model.config import ModelConfig, read_config
from engine.model.layout import Fused, fused_tensors
from engine.model.rope import rotary_tables

LLAMA_8B = ModelConfig(
    family="llama", vocab=128256, hidden=4096, layers=32, heads=32, kv_heads=8, head_dim=128, ffn=14336,
    context=8192, eps=1e-5, rope=Rope(5e5), tied=False, qkv_bias=False, o_bias=False, qk_norm=False,
)  # fmt: skip
DRY = replace(LLAMA_8B, vocab=320, hidden=64, layers=2, heads=4, kv_heads=2, head_dim=16, ffn=96, context=512)


def on_device(config: ModelConfig, device: torch.device, seed: int = 1) -> DeviceWeights:
    draw = torch.Generator(device).manual_seed(seed)
    cos = np.empty((config.context, config.head_dim // 2), np.float32)
    sin = np.empty_like(cos)
    rotary_tables(config.rope, config.head_dim, cos, sin)
    placed = {one.name: _drawn(one, draw, device) for one in fused_tensors(config)}
    tables = (torch.from_numpy(table).to(device) for table in (cos, sin))
    return assemble(config, f"random {seed}", placed, *tables)


def as_draft(weights: DeviceWeights, noise: float, seed: int = 2) -> DeviceWeights:
    """A draft that is often right and often wrong: the same model, but noise is added to its head. `noise` is a share
    of the head's own standard deviation."""
    draw = torch.Generator(weights.device).manual_seed(seed)
    added = torch.empty_like(weights.head).normal_(0, noise * float(weights.head.float().std()), generator=draw)
    return replace(weights, head=weights.head + added, model_hash=f"{weights.model_hash} and noise {noise}")


def _drawn(one: Fused, draw: torch.Generator, device: torch.device) -> torch.Tensor:
    if not one.is_matrix:
        return torch.ones(one.rows, device=device)
    matrix = torch.empty(one.rows, one.columns, dtype=torch.bfloat16, device=device)
    return matrix.normal_(0, one.columns**-0.5, generator=draw)


def as_folder(config: ModelConfig, folder: Path, device: torch.device, seed: int = 1) -> Path:
    """A complete Hugging Face folder, tokenizer included (bytes); one shard for each layer or so."""
    from safetensors.torch import save_file

    tiny(
        folder, "llama2", dtype="bf16"
    )  # writes the tokenizer and small files; what depends on the shape is written again below
    (folder / "model.safetensors").unlink()
    about = json.loads((folder / "config.json").read_text()) | {
        "vocab_size": config.vocab, "hidden_size": config.hidden, "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads, "num_key_value_heads": config.kv_heads, "head_dim": config.head_dim,
        "intermediate_size": config.ffn, "max_position_embeddings": config.context, "rms_norm_eps": config.eps,
        "rope_theta": config.rope.theta, "tie_word_embeddings": config.tied,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(about, indent=2) + "\n")
    if read_config(folder) != config:
        raise ValueError(f"{folder} describes another model than requested: {read_config(folder)}")
    draw, index = torch.Generator(device).manual_seed(seed), dict[str, str]()
    for number, one in enumerate(fused_tensors(config)):
        file = f"model-{number:05}.safetensors"
        whole, row, parts = _drawn(one, draw, device).bfloat16().cpu(), 0, dict[str, torch.Tensor]()
        for source in one.sources:
            parts[source.name] = whole[row : row + source.rows].contiguous()
            row += source.rows
        save_file(parts, folder / file, metadata={"format": "pt"})
        index |= dict.fromkeys(parts, file)
    total = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    listing = {"metadata": {"total_size": total}, "weight_map": index}
    (folder / "model.safetensors.index.json").write_text(json.dumps(listing))
    return folder
