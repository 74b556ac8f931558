"""Writes a trained network as a Hugging Face folder in bf16, and reads one back."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from models.network import NetworkShape, TrainedNetwork
from models.template import BEGIN, END, PAD
from models.tokenizer import save_tokenizer


def export(network: TrainedNetwork, tokenizer: Tokenizer, folder: Path) -> None:
    save_tokenizer(tokenizer, folder, network.shape.context)
    special = {
        "bos_token_id": tokenizer.token_to_id(BEGIN),
        "eos_token_id": tokenizer.token_to_id(END),
        "pad_token_id": tokenizer.token_to_id(PAD),
    }
    _write(folder / "config.json", _config(network.shape) | special)
    _write(folder / "generation_config.json", special | {"do_sample": False})
    tensors = {
        f"model.{name}": one.detach().to(torch.bfloat16).contiguous() for name, one in network.named_parameters()
    }
    file = folder / "model.safetensors"
    save_file(tensors, file, {"format": "pt"})
    file.chmod(0o644)


def read(folder: Path) -> TrainedNetwork:
    """The network in fp32, with the rounded weights of the folder."""
    raw = json.loads((folder / "config.json").read_text())
    shape = NetworkShape(
        hidden=raw["hidden_size"],
        layers=raw["num_hidden_layers"],
        heads=raw["num_attention_heads"],
        kv_heads=raw["num_key_value_heads"],
        head_dim=raw["head_dim"],
        ffn=raw["intermediate_size"],
        vocab=raw["vocab_size"],
        context=raw["max_position_embeddings"],
        theta=raw["rope_theta"],
        eps=raw["rms_norm_eps"],
    )
    network = TrainedNetwork(shape)
    tensors = load_file(folder / "model.safetensors")
    network.load_state_dict({name.removeprefix("model."): values.float() for name, values in tensors.items()})
    return network.eval()


def _config(shape: NetworkShape) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.ffn,
        "max_position_embeddings": shape.context,
        "rms_norm_eps": shape.eps,
        "rope_theta": shape.theta,
        "rope_scaling": None,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "use_cache": True,
        "dtype": "bfloat16",
    }


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
