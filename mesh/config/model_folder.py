"""Says what a place holds that was named as a model and is none: an adapter, a GGUF, a hub id, weights in another form.

Settings are checked with it before a service starts, and a worker that finds no weights words its error with it.
Nothing is loaded: names of files decide, and one line of an adapter's configuration."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+(@[\w./-]+)?(:\w+)?")
_BINS = ("pytorch_model*.bin", "*.pt", "*.pth", "consolidated*.safetensors")
ADAPTER = "adapter_config.json"
_MERGE = "merge both with peft: PeftModel.from_pretrained(base, folder).merge_and_unload().save_pretrained(merged)"
_GGUF = "its weights are GGUF: name the file itself, as FILE.gguf"


def is_hub_id(name: str) -> bool:
    """Whether a name can be that of a model on the Hugging Face hub: ORG/NAME, with @REVISION or
    the type of a GGUF file, such as :Q4_K_M, behind it."""
    return _HUB_ID.fullmatch(name) is not None and ".." not in name


def why_no_model(place: Path) -> str | None:
    """Why this is no Hugging Face model folder, and what to do; None: it has a config.json and no adapter beside it."""
    config = place / "config.json"
    if config.is_file():
        return _adapter_beside(place)
    if not place.exists():
        return f"{place} is not a Hugging Face model folder (there is no such folder)"
    if not place.is_dir():
        return _GGUF if place.suffix == ".gguf" else f"{place} is no folder; name the folder with config.json in it"
    if config.exists():
        return f"{config} is no regular file; copy the file itself"
    problem = f"{place} is not a Hugging Face model folder (it has no config.json)"
    return f"{problem}; {what}" if (what := _other_form(place) or _deeper(place)) else problem


def why_no_weights(folder: Path) -> tuple[str, str]:
    """The fault of a folder without safetensors of a model, and the remedy."""
    lacks = "there is no model.safetensors and no index of shards"
    if any(_found(folder, ("pytorch_model*.bin",))):
        load, save = f"M.from_pretrained('{folder}', dtype='auto')", f"save_pretrained('{folder}')"
        command = f'python -c "from transformers import AutoModelForCausalLM as M; {load}.{save}"'
        return "the weights are .bin files, which can hold programs and are not opened", f"Convert them once: {command}"
    if what := _other_form(folder):
        return lacks, f"{what[0].upper()}{what[1:]}."
    return lacks, "Baton reads safetensors only; convert the checkpoint with transformers' save_pretrained."


def _adapter_beside(folder: Path) -> str | None:
    """Refuses a model with an adapter in its folder: transformers would apply the adapter by itself."""
    if not (folder / ADAPTER).is_file():
        return None
    problem = f"{folder} holds a model and an adapter ({ADAPTER}), and Baton reads each from a folder of its own"
    apart = "to serve the adapter too, move them into another folder and name that in `adapters`"
    return f"{problem}; to serve the model alone remove the adapter's files; {apart}, or {_MERGE}"


def _other_form(folder: Path) -> str | None:
    """The form in which the folder holds a model, if Baton knows it and cannot read it."""
    if (adapter := folder / ADAPTER).is_file():
        base = _base_model(adapter)
        return f"it holds an adapter{f' of {base}' if base else ''}, no whole model; {_MERGE}"
    if any(_found(folder, ("*.gguf",))):
        return _GGUF
    if any(_found(folder, _BINS)):
        return "its weights are not in the form of transformers; download the model's Hugging Face form"
    return None


def _deeper(folder: Path) -> str | None:
    """Where the folder's only models are, as in the cache of the hub (models--ORG--NAME/snapshots/REVISION)."""
    found = sorted({*folder.glob("*/config.json"), *folder.glob("snapshots/*/config.json")})
    return f"did you mean {' or '.join(str(file.parent) for file in found[:3])}?" if found else None


def _found(folder: Path, patterns: Sequence[str]) -> list[Path]:
    return [file for pattern in patterns for file in folder.glob(pattern)]


def _base_model(adapter: Path) -> str:
    try:
        base = json.loads(adapter.read_bytes()).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError):
        return ""
    return base if isinstance(base, str) else ""
