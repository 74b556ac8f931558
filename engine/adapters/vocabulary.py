"""Refuses adapters whose tokenizer has tokens that the model's lacks: texts with them would be read as other tokens
than those that the adapter was trained with.

Training scripts often save the tokenizer beside the adapter. Nothing of it is served, it is only compared; a token for
padding never stands in a text, so that one may be new."""

import json
from pathlib import Path
from typing import Any

from engine.formats.errors import ModelError
from mesh.config.small_files import CONFIG_BYTES, TOKENIZER_BYTES, read_small

_EMBEDDINGS = ("new_embeddings.safetensors", "new_embeddings.bin")  # vLLM's form of an adapter with tokens of its own
_TOKENIZER, _CONFIG, _ADDED = "tokenizer.json", "tokenizer_config.json", "added_tokens.json"
_MERGE = "Serve its base with these tokens as a model of its own (peft's merge_and_unload)"
_OR = "or remove the tokenizer's files from the adapter's folder if its prompts never hold them."
_SHOWN = 5  # tokens that an error names


def refuse_new_tokens(folder: Path, base: Path) -> None:
    """Raises ModelError when the adapter in `folder` has tokens that the model in `base` lacks."""
    for name in _EMBEDDINGS:
        if (folder / name).exists():
            raise ModelError(folder / name, "file", "holds embeddings of tokens that the model lacks", f"{_MERGE}.")
    if not (base / _TOKENIZER).is_file():
        return
    new = _added(folder) - _added(base) - {_padding(folder)}
    if new and (new := new - _vocabulary(base)):
        names = ", ".join(map(repr, sorted(new)[:_SHOWN])) + (", ..." if len(new) > _SHOWN else "")
        problem = f"has tokens that the model's tokenizer lacks: {names}"
        raise ModelError(folder / _TOKENIZER, "added_tokens", problem, f"{_MERGE}, {_OR}")


def _added(folder: Path) -> set[str]:
    """The tokens that were added to a vocabulary, in whichever file they stand."""
    listed = _read(folder / _TOKENIZER, TOKENIZER_BYTES).get("added_tokens")
    by_id = _read(folder / _CONFIG).get("added_tokens_decoder")
    tokens = [*(listed if isinstance(listed, list) else ()), *(by_id.values() if isinstance(by_id, dict) else ())]
    return {*map(_content, tokens), *_read(folder / _ADDED)} - {""}


def _padding(folder: Path) -> str:
    return _content(_read(folder / _CONFIG).get("pad_token"))


def _vocabulary(folder: Path) -> set[str]:
    """The tokens that belong to the tokenizer's model itself."""
    model = _read(folder / _TOKENIZER, TOKENIZER_BYTES).get("model")
    found = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(found, dict):
        return set(found)
    return {str(each[0]) for each in found if isinstance(each, list) and each} if isinstance(found, list) else set()


def _content(token: Any) -> str:
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else ""


def _read(path: Path, most_bytes: int = CONFIG_BYTES) -> dict[str, Any]:
    """The JSON object of a file; empty where there is none that can be read: nothing of it is served."""
    try:
        found = json.loads(read_small(path, most_bytes))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
