"""Compares random configurations of every family with transformers: `python -m tests.families --json`.

Each configuration draws some of its family's fields by its number, so that slices add up: `--configs 5 --first 10` are
the numbers 10 to 14 of each family. `mesh_equal` says that prefill in chunks on one engine and decode of one token a
step on another, between which pages move and are converted where their sizes differ, give the bits of one engine that
computes the text in one piece. Where a logit differs by more than 1e-4, `beyond` counts the configuration, and
`from_exact` has the distances from transformers' own result in 64 bits: of Baton, and of transformers in 32 bits."""

import argparse
import json
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from engine.formats.errors import ModelError
from engine.model.config import read_config
from engine.model.page_memory import page_layout
from engine.model.weights import Floats, Weights, open_weights
from kvtransfer.conversion import Conversion, pages_under
from tests.families.folders import OWN, VOCABULARY, rewritten, saved
from tests.families.oracle import NEAR, distance, theirs
from tests.unit.engine.conftest import CpuEngine

_PROMPT, _ANSWER = 90, 24
_PAGES = ((32, 32), (32, 16), (16, 32), (64, 32))  # tokens in a page at prefill, and in one at decode
_CHUNKS = (90, 17, 32, 64)  # tokens that prefill computes at once
_ROPES: list[dict[str, Any]] = [
    {"rope_theta": 1e4},
    {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0},
    {"rope_theta": 1e4, "rope_type": "dynamic", "factor": 4.0},
    {"rope_theta": 1e4, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
]
_BOOLEANS = (False, True)
_COMMON: dict[str, list[Any]] = {
    "num_key_value_heads": [1, 2, 4],
    "intermediate_size": [64, 100],
    "tie_word_embeddings": list(_BOOLEANS),
    "num_hidden_layers": [2, 5],
}
_ATTENTION: dict[str, list[Any]] = {"attention_bias": list(_BOOLEANS)}
_CAPS: dict[str, list[Any]] = {"final_logit_softcapping": [None, 3.0], "query_pre_attn_scalar": [24, 64]}
_PARTIAL = [{"rope_theta": 1e4, "partial_rotary_factor": share} for share in (0.25, 0.5, 1.0)]
_EXPERTS: dict[str, list[Any]] = {
    "num_experts": [4, 9],
    "num_experts_per_tok": [1, 2, 4],
    "moe_intermediate_size": [64, 40],
    "norm_topk_prob": list(_BOOLEANS),
    "decoder_sparse_step": [1, 2],
    "mlp_only_layers": [[], [1]],
}
_WINDOWS: dict[str, list[Any]] = {"sliding_window": [1, 7, 31, 32, 33, 50, 256]}
_SWITCHED = _WINDOWS | {"use_sliding_window": list(_BOOLEANS), "max_window_layers": [0, 1, 2]}
FIELDS: dict[str, dict[str, list[Any]]] = {
    "llama": _ATTENTION | {"mlp_bias": list(_BOOLEANS), "rope_parameters": _ROPES, "head_dim": [16, 48]},
    "mistral": _WINDOWS | {"rope_parameters": _ROPES, "head_dim": [16, 48]},
    "ministral": _WINDOWS | {"rope_parameters": _ROPES, "head_dim": [16, 48]},
    "qwen2": _SWITCHED | {"rope_parameters": _ROPES},
    "qwen3": _SWITCHED | _ATTENTION | {"rope_parameters": _ROPES},
    "phi3": _WINDOWS | {"rope_parameters": _PARTIAL},
    "granite": _ATTENTION
    | {"mlp_bias": list(_BOOLEANS), "residual_multiplier": [0.22, 1.0], "logits_scaling": [1.0, 8.0]},
    "smollm3": _ATTENTION | {"mlp_bias": list(_BOOLEANS), "no_rope_layer_interval": [2, 4]},
    "olmo2": _ATTENTION | {"rope_parameters": _ROPES},
    "olmo3": _WINDOWS | _ATTENTION,
    "glm4": _ATTENTION | {"rope_parameters": _PARTIAL},
    "gemma": _ATTENTION | {"hidden_act": ["gelu", "gelu_pytorch_tanh"]},
    "gemma2": _WINDOWS | _ATTENTION | _CAPS | {"attn_logit_softcapping": [None, 2.0]},
    "gemma3_text": _WINDOWS | _ATTENTION | _CAPS,
    "stablelm": {"use_qkv_bias": list(_BOOLEANS), "rope_parameters": _PARTIAL},
    "starcoder2": _WINDOWS | {"use_bias": list(_BOOLEANS), "hidden_act": ["silu", "gelu_pytorch_tanh"]},
    "mixtral": {
        "num_local_experts": [3, 8],
        "num_experts_per_tok": [1, 2, 3],
        "rope_parameters": _ROPES,
        "head_dim": [16, 48],
    },
    "qwen2_moe": _EXPERTS | {"qkv_bias": list(_BOOLEANS), "shared_expert_intermediate_size": [64, 100]},
    "qwen3_moe": _EXPERTS | _ATTENTION | {"rope_parameters": _ROPES},
    "olmoe": _ATTENTION | {"clip_qkv": [None, 0.8], "norm_topk_prob": list(_BOOLEANS), "num_experts_per_tok": [1, 3]},
    "deepseek_v2": {
        "num_key_value_heads": [4],
        "n_routed_experts": [4, 9],
        "num_experts_per_tok": [1, 3],
        "n_shared_experts": [1, 2],
        "first_k_dense_replace": [0, 1, 5],
        "routed_scaling_factor": [1.0, 2.5],
        "kv_lora_rank": [32, 112],
        "qk_nope_head_dim": [8, 24],
        "v_head_dim": [16, 20],
        "rope_parameters": _ROPES,
    },
    "gpt_oss": _WINDOWS
    | _ATTENTION
    | {"num_local_experts": [3, 8], "num_experts_per_tok": [1, 2, 3], "head_dim": [16, 48], "rope_parameters": _ROPES},
}
REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"hidden_act": "relu2"}),
    ("llama", {"sliding_window": 64}),
    ("phi3", {"layer_types": ["sliding_attention"] * 4, "sliding_window": 64}),
    ("gemma2", {"sliding_window": 0}),
    ("smollm3", {"use_sliding_window": True}),
    ("gemma3_text", {"use_bidirectional_attention": True}),
    ("stablelm", {"use_parallel_residual": True}),
    ("mixtral", {"num_experts_per_tok": 9}),
    ("qwen2_moe", {"mlp_only_layers": "all"}),
    ("qwen3_moe", {"use_sliding_window": True}),
    ("olmoe", {"clip_qkv": -1.0}),
    ("deepseek_v2", {"q_lora_rank": 1536}),
    ("gpt_oss", {"swiglu_limit": 5.0}),
]


def compare(family: str, numbers: range, folder: Path) -> dict[str, Any]:
    greatest, tokens_equal, mesh_equal, beyond, from_exact = 0.0, True, True, 0, (0.0, 0.0)
    for number in numbers:
        draw = random.Random(f"{family} {number}")
        fields = {name: draw.choice(values) for name, values in (_COMMON | FIELDS[family]).items()}
        model = saved(folder / f"{family}-{number}", family, fields, seed=number)
        weights = open_weights(model, folder / "cache", product_path="fp32")
        prompt = [draw.randrange(VOCABULARY) for _ in range(_PROMPT)]
        one = CpuEngine(weights)
        tokens = [each.token for each in one.generate(prompt, _ANSWER)]
        text = prompt + tokens
        logits, expected = one.logits(text), theirs(model, text)
        one.runner.close()
        difference = distance(logits, expected)
        if difference > NEAR:
            exact, beyond = theirs(model, text, torch.float64), beyond + 1
            if difference > greatest:
                from_exact = distance(logits, exact), distance(expected, exact)
        greatest = max(greatest, difference)
        second, best = np.sort(expected[_PROMPT - 1 : -1], axis=1)[:, -2:].T
        decided = best - second > 2 * NEAR
        tokens_equal &= bool((np.array(tokens) == expected[_PROMPT - 1 : -1].argmax(1))[decided].all())
        mesh_equal &= _on_two_tiers(weights, prompt, tokens, number).tobytes() == logits[_PROMPT:].tobytes()
        shutil.rmtree(model)
        shutil.rmtree(folder / "cache")
    return {
        "configs": len(numbers),
        "max_difference": greatest,
        "tokens_equal": tokens_equal,
        "mesh_equal": mesh_equal,
        **({"beyond": beyond, "from_exact": from_exact} if beyond else {}),
    }


def _on_two_tiers(weights: Weights, prompt: list[int], tokens: list[int], number: int) -> Floats:
    """The logits of the answer's rows at a decode engine that has got the prompt's pages from a prefill engine."""
    sizes, chunk = _PAGES[number % len(_PAGES)], _CHUNKS[number // 2 % len(_CHUNKS)]
    prefill, decode = (CpuEngine(weights, page_tokens=size, pool_pages=16) for size in sizes)
    source, target = (page_layout(weights, None, size) for size in sizes)
    conversion = Conversion(source, target)
    prefill.logits(prompt, chunk=chunk)
    theirs, ours = (each.pool.reshape(each.pool_pages, -1) for each in (prefill, decode))
    for index in range(-(-len(prompt) // sizes[1])):
        under = pages_under(index, len(prompt), source_tokens=sizes[0], target_tokens=sizes[1])
        ours[index] = conversion.span(index, [theirs[page] for page in under], 0, target.layers)
    found = decode.logits(tokens, start=len(prompt), chunk=1)
    prefill.runner.close()
    decode.runner.close()
    return found


def refused(folder: Path) -> list[dict[str, str]]:
    """The field that the error names, for each configuration that is not computed."""
    found = []
    for number, (family, fields) in enumerate(REFUSED):
        model = rewritten(saved(folder / f"refused-{number}", family, {}), fields)
        try:
            read_config(model)
            found.append({"family": family, "asked": next(iter(fields)), "named": ""})
        except ModelError as error:
            found.append({"family": family, "asked": next(iter(fields)), "named": error.field})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one object")
    parser.add_argument("--configs", type=int, default=15, help="configurations of each family")
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    parser.add_argument("families", nargs="*", default=list(OWN), help="which families; all by default")
    arguments = parser.parse_args()
    if arguments.configs < 1 or arguments.first < 0 or set(arguments.families) - set(OWN):
        parser.error(f"--configs is at least 1, --first at least 0, and families are {', '.join(OWN)}")
    numbers = range(arguments.first, arguments.first + arguments.configs)
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        report = {
            "families": {name: compare(name, numbers, Path(folder)) for name in arguments.families},
            "refused": refused(Path(folder)),
        }
    if arguments.json:
        print(json.dumps(report))
        return
    for name, row in report["families"].items():
        print(
            f"{name:12} {row['configs']} configurations, largest difference {row['max_difference']:.1e}, "
            f"tokens equal: {row['tokens_equal']}, pages moved: {row['mesh_equal']}"
        )
    for row in report["refused"]:
        print(f"{row['family']:12} {row['asked']} is refused: {row['named'] == row['asked']}")


if __name__ == "__main__":
    main()
