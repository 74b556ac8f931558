"""A folder of a model in int8 with a scale per output, as llmcompressor writes W8A8: what vLLM and Baton both serve."""

import json
import shutil
from pathlib import Path

WEIGHTS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False}
SCHEME = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": WEIGHTS,
            "input_activations": WEIGHTS | {"strategy": "token", "dynamic": True},
        }
    },
}


def in_channels(model: Path, target: Path) -> Path:
    """The folder, which is written unless it is there."""
    if (target / "config.json").exists():
        return target
    import torch
    from safetensors.torch import load_file, save_file

    kept = dict[str, torch.Tensor]()
    for name, weight in load_file(model / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            kept[name] = weight
            continue
        scale = (weight.float().abs().amax(dim=1, keepdim=True) / 127).bfloat16()
        kept[name] = torch.round(weight.float() / scale.float()).clamp(-127, 127).to(torch.int8)
        kept[f"{name}_scale"] = scale
    target.mkdir(parents=True, exist_ok=True)
    save_file(kept, target / "model.safetensors", metadata={"format": "pt"})
    for path in model.iterdir():
        if path.name not in ("model.safetensors", "config.json"):
            shutil.copy(path, target / path.name)
    config = json.loads((model / "config.json").read_text()) | {"quantization_config": SCHEME}
    (target / "config.json").write_text(json.dumps(config, indent=2))
    return target
