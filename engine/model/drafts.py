"""Checks, while a worker starts, that one model can draft for another, on whatever device."""

import json
import sys
from pathlib import Path
from typing import Any

from engine.formats.errors import ModelError
from engine.model.config import ModelConfig, read_config
from mesh.config.small_files import TOKENIZER_BYTES, read_small

REMEDY = "Set `draft` to a smaller model of the same family and tokenizer, or leave it out."


def check_draft(folder: Path, model: ModelConfig, model_folder: Path, *, padded: bool = True) -> None:
    """Raises ModelError unless the draft has the model's tokens. `padded`: the device serves drafts whose vocabulary
    has other padding, and drafts whose context is shorter: behind it nothing is drafted."""
    config = read_config(folder)
    mine, theirs = _vocabulary(folder), _vocabulary(model_folder)
    if mine != theirs:
        raise ModelError(folder, "draft", f"has another tokenizer than the model in {model_folder}", REMEDY)
    if config.vocab != model.vocab and (not padded or config.vocab <= _last_id(mine)):
        problem = f"has a vocabulary of {config.vocab} tokens where the model has {model.vocab}"
        raise ModelError(folder, "draft", problem, REMEDY)
    if config.context < model.context and not padded:
        problem = f"has a context of {config.context} tokens where the model has {model.context}"
        raise ModelError(folder, "draft", problem, REMEDY)


def _vocabulary(folder: Path) -> dict[str, Any] | None:
    """Which text each token id stands for; None where the folder has no tokenizer."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        return None
    content = json.loads(read_small(file, TOKENIZER_BYTES))
    return {"vocab": content["model"].get("vocab"), "added": content.get("added_tokens")}


def _last_id(vocabulary: dict[str, Any] | None) -> int:
    """The last id that stands for a text; without a tokenizer every id may."""
    if vocabulary is None:
        return sys.maxsize
    texts = vocabulary["vocab"] or {}
    ids = list(texts.values() if isinstance(texts, dict) else range(len(texts)))
    ids += [token["id"] for token in vocabulary["added"] or ()]
    last: int = max(ids, default=0)
    return last
