"""Checks, while a worker starts, that one model can draft for another, on whatever device."""

import json
from pathlib import Path

from engine.model.config import ModelConfig, read_config
from engine.model.errors import ModelError

REMEDY = "Set `draft` to a smaller model of the same family and tokenizer, or leave it out."


def check_draft(folder: Path, model: ModelConfig, model_folder: Path) -> None:
    """Raises ModelError unless the draft has the model's tokens and at least its context."""
    config = read_config(folder)
    if config.vocab != model.vocab:
        problem = f"has a vocabulary of {config.vocab} tokens where the model has {model.vocab}"
        raise ModelError(folder, "draft", problem, REMEDY)
    if config.context < model.context:
        problem = f"has a context of {config.context} tokens where the model has {model.context}"
        raise ModelError(folder, "draft", problem, REMEDY)
    if _vocabulary(folder) != _vocabulary(model_folder):
        raise ModelError(folder, "draft", f"has another tokenizer than the model in {model_folder}", REMEDY)


def _vocabulary(folder: Path) -> object:
    """Which text each token id stands for; None where the folder has no tokenizer."""
    file = folder / "tokenizer.json"
    return json.loads(file.read_bytes())["model"].get("vocab") if file.exists() else None
