"""The models with random weights that benchmarks compute, made on first use."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.command import say
from engine.builtin import make_shape, tiny

SHAPE = "qwen2.5-0.5b"
BYTES = "qwen2.5-0.5b-bytes"  # the same layers; its answers are readable, so that every token is a chunk of text
VOCAB = 151936
TENTH: dict[str, Any] = {
    "hidden": 256,
    "layers": 14,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 64,
    "ffn": 704,
}  # 49 M parameters


def make_once(cache: Path, shape: str = SHAPE) -> Path:
    """Folder of the random model of this shape."""
    return _made(cache / f"{shape}-bf16-random", lambda folder: make_shape(folder, shape=shape))


def make_tenth(cache: Path) -> Path:
    """Folder of a random draft with a tenth of the 0.5B shape's parameters."""
    common: dict[str, Any] = {"tied": True, "vocab": VOCAB, "context": 32768, "theta": 1e6, "dtype": "bf16"}
    return _made(cache / "qwen2.5-0.5b-tenth-random", lambda folder: tiny(folder, "qwen2", **common, **TENTH))


def path_beside(path: str, precision: str) -> str:
    """The product path for weights of this precision, where those of bf16 have `path`."""
    return path if precision == "bf16" else "auto-amx" if path == "amx" else "auto"


def _made(folder: Path, make: Callable[[Path], Path]) -> Path:
    if not folder.is_dir():
        say(f"making a random model in {folder}, once")
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = folder.with_suffix(".tmp")
        shutil.rmtree(aside, ignore_errors=True)
        make(aside).rename(folder)
    return folder
