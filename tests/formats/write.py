"""Writes tiny quantized checkpoints with the tools that people use, and beside each the numbers that the tool says its
weights stand for, and the logits of a model that has these numbers.

It runs in an environment of its own (`make formats`), which has these tools and nothing of Baton."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SHAPE = {
    "vocab_size": 262, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 512, "tie_word_embeddings": False,
}  # fmt: skip
PROMPT = [(7 * place * place + 3 * place) % 262 for place in range(48)]
COMPRESSED = ("W8A8", "W8A16", "W4A16", "W4A16_ASYM", "FP8_DYNAMIC", "MXFP4A16")
ROUNDED = {  # AutoRound's formats: bits, group, symmetric
    "gptq-4-sym": ("auto_gptq", 4, 128, True),
    "gptq-4-asym": ("auto_gptq", 4, 32, False),
    "gptq-8-sym": ("auto_gptq", 8, 64, True),
    "awq-4-asym": ("auto_awq", 4, 128, False),
}
BLOCKS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4", "F16", "BF16")
Weights = dict[str, torch.Tensor]


def model(out: Path, dtype: torch.dtype) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(out / "dense", dtype=dtype)


def dump(out: Path, name: str, weights: Weights) -> None:
    """The numbers of the quantized matrices, and the logits of the model that has them."""
    whole = model(out, torch.float32)
    with torch.no_grad():
        for key, value in weights.items():
            whole.get_parameter(key).copy_(value.float())
        logits = whole(torch.tensor([PROMPT])).logits[0]
    tensors = {key: value.detach().float().contiguous() for key, value in weights.items()}
    save_file(tensors | {"logits": logits.contiguous()}, str(out / f"{name}.numbers.safetensors"))


def compressed(out: Path, scheme: str) -> None:
    from compressed_tensors.quantization.lifecycle.forward import fake_quantize
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import QuantizationModifier

    made = model(out, torch.bfloat16)
    oneshot(model=made, recipe=QuantizationModifier(targets="Linear", scheme=scheme, ignore=["lm_head"]))
    weights = Weights()
    for name, module in made.named_modules():
        if hasattr(module, "weight_scale"):
            wanted = module.quantization_scheme.weights
            zero, order = getattr(module, "weight_zero_point", None), getattr(module, "weight_g_idx", None)
            weights[f"{name}.weight"] = fake_quantize(module.weight, module.weight_scale, zero, wanted, order)
    dump(out, f"compressed-tensors-{scheme}", weights)
    made.save_pretrained(out / f"compressed-tensors-{scheme}", save_compressed=True)


def bitsandbytes(out: Path, kind: str) -> None:
    from bitsandbytes import functional

    four = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": torch.bfloat16}
    wanted = BitsAndBytesConfig(load_in_8bit=True) if kind == "int8" else BitsAndBytesConfig(load_in_4bit=True, **four)
    made = LlamaForCausalLM.from_pretrained(
        out / "dense", quantization_config=wanted, dtype=torch.bfloat16, device_map="cpu"
    )
    made.save_pretrained(out / f"bitsandbytes-{kind}")
    weights = Weights()
    for name, module in made.named_modules():
        if not name.endswith("_proj"):
            continue
        data: Any = module.weight
        if kind == "nf4":
            weights[f"{name}.weight"] = functional.dequantize_4bit(data.data, data.quant_state)
        else:
            largest = data.SCB if data.SCB is not None else module.state.SCB
            weights[f"{name}.weight"] = data.data.float() * (largest.view(-1, 1) / 127)
    dump(out, f"bitsandbytes-{kind}", weights)


def rounded(out: Path, name: str) -> None:
    from auto_round import AutoRound

    form, bits, group, symmetric = ROUNDED[name]
    words = PreTrainedTokenizerFast.from_pretrained(out / "dense")
    made = AutoRound(
        model(out, torch.float16), words, iters=0, disable_opt_rtn=True, bits=bits, group_size=group, sym=symmetric
    )
    made.quantize_and_save(str(out / f"{name}.parts"), format=form)
    (folder,) = (path for path in (out / f"{name}.parts").iterdir() if path.is_dir())
    folder.rename(out / name)


def blocks(out: Path) -> None:
    """Random blocks of every type of GGUF, and the numbers that its own library gives them."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

    rng, found = np.random.default_rng(2), dict[str, np.ndarray]()
    for name in BLOCKS:
        kind = GGMLQuantizationType[name]
        block, size = GGML_QUANT_SIZES[kind]
        raw = rng.integers(0, 256, (64, max(1, 512 // block) * size), np.uint8)
        if block == 1:
            raw = (rng.normal(0, 1, (64, 512)).astype(np.float16).view(np.uint16) & 0x7BFF).view(np.uint8)
        else:
            _ordinary(name, raw.reshape(-1, size), rng)
        found[f"{name}.raw"], found[f"{name}.numbers"] = raw, dequantize(raw, kind)
    np.savez(out / "gguf.npz", **found)


def _ordinary(name: str, raw: np.ndarray, rng: np.random.Generator) -> None:
    """Scales that are ordinary numbers."""
    if name == "MXFP4":
        raw[:, 0] = rng.integers(110, 130, len(raw))
        return
    places = {"Q6_K": (208,), "Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2)}.get(name, (0,))
    for place in places:
        raw[:, place : place + 2] = rng.normal(0, 0.01, (len(raw), 1)).astype(np.float16).view(np.uint8)


def main(out: Path) -> None:
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SHAPE)).to(torch.bfloat16).save_pretrained(out / "dense")
    tasks: dict[str, Callable[[], None]] = {"gguf": lambda: blocks(out)}
    tasks |= {f"compressed-tensors-{scheme}": lambda s=scheme: compressed(out, s) for scheme in COMPRESSED}  # type: ignore[misc]
    tasks |= {f"bitsandbytes-{kind}": lambda k=kind: bitsandbytes(out, k) for kind in ("int8", "nf4")}  # type: ignore[misc]
    tasks |= {name: lambda n=name: rounded(out, n) for name in ROUNDED}  # type: ignore[misc]
    for name, task in tasks.items():
        task()
        print(f"wrote {name}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
