"""The parts of a model's folder that the front doors need: tokenizer, chat template, context length, end-of-sequence
ids.

Weights are never read. A file that is missing or broken is an error at start, which names the file and what to do."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from gateway.text.chat import ChatTemplate, Now
from gateway.text.generation import read_defaults
from gateway.text.tokenizer import ModelTokenizer
from gateway.text.tokenizer_files import SPECIAL_TOKENS, AssetError, load_tokenizer
from gateway.text.tools import why_no_tools

__all__ = ["AssetError", "Assets", "Defaults", "load_assets"]


@dataclass(frozen=True, slots=True)
class Defaults:
    """Sampling parameters for fields that a request leaves out: those of the model's generation_config.json."""

    temperature: float = 1.0
    top_k: int = 0  # 0 is off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0  # 0 is off
    suppress_tokens: tuple[int, ...] = ()
    min_new_tokens: int = 0


@dataclass(frozen=True)
class Assets:
    name: str  # name that clients put into `model`
    tokenizer: ModelTokenizer
    template: ChatTemplate | None  # None: the model cannot chat
    why_no_tools: str | None  # reason to refuse tools; None: the template supports them
    context_tokens: int
    vocabulary: int  # number of token ids
    eos_ids: tuple[int, ...]
    defaults: Defaults = Defaults()


def load_assets(folder: Path, name: str, now: Now | None = None, *, context_tokens: int = 0) -> Assets:
    """`context_tokens`: tokens of a prompt and its answer, at most; 0: as many as the model allows."""
    config = _read(folder / "config.json")
    text = config.get("text_config", config)
    generation = _read(folder / "generation_config.json", optional=True)
    tokenizer_config = _read(folder / "tokenizer_config.json", optional=True)
    special_map = _read(folder / "special_tokens_map.json", optional=True)
    added = _read(folder / "added_tokens.json", optional=True)
    tokenizer = load_tokenizer(folder, tokenizer_config, special_map, added, model_type=config.get("model_type"))
    special = _special_tokens(tokenizer_config, special_map)
    eos_ids = {*_ids(config, "eos_token_id"), *_ids(text, "eos_token_id"), *_ids(generation, "eos_token_id")}
    template = _template(folder, tokenizer_config, special, now)
    named_eos = tokenizer.token_to_id(special["eos_token"]) if "eos_token" in special else None
    vocabulary = _positive(folder, text, "vocab_size")
    return Assets(
        name=name,
        tokenizer=ModelTokenizer(tokenizer),
        template=template,
        why_no_tools=why_no_tools(template) if template is not None else "the model has no chat template",
        context_tokens=_context(folder, text, context_tokens),
        vocabulary=vocabulary,
        eos_ids=tuple(sorted(eos_ids if named_eos is None else eos_ids | {named_eos})),
        defaults=_defaults(folder, generation, vocabulary),
    )


def _defaults(folder: Path, generation: Mapping[str, Any], vocabulary: int) -> Defaults:
    try:
        return Defaults(**read_defaults(generation, vocabulary))
    except ValueError as error:
        raise AssetError(f"model: {folder / 'generation_config.json'}: {error}") from None


def _context(folder: Path, config: Mapping[str, Any], wanted: int) -> int:
    allowed = _positive(folder, config, "max_position_embeddings")
    if wanted > allowed:
        raise AssetError(f"context_tokens: {wanted} is more than the {allowed} tokens that the model allows; lower it")
    return wanted or allowed


def _read(file: Path, *, optional: bool = False) -> dict[str, Any]:
    if optional and not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise AssetError(f"model: {file} is missing; name a complete Hugging Face model folder") from None
    except (OSError, ValueError) as error:
        raise AssetError(f"model: {file} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise AssetError(f"model: {file} holds no JSON object")
    return content


def _template(
    folder: Path, tokenizer_config: Mapping[str, Any], special: Mapping[str, str], now: Now | None
) -> ChatTemplate | None:
    file = folder / "chat_template.jinja"
    source: Any = file.read_text(encoding="utf-8") if file.is_file() else tokenizer_config.get("chat_template")
    where = file if file.is_file() else folder / "tokenizer_config.json"
    if isinstance(source, list):  # several, by name
        source = {item["name"]: item["template"] for item in source}.get("default")
    if source is None:
        return None
    try:
        return ChatTemplate(source, special, now)
    except (jinja2.TemplateError, TypeError) as error:
        raise AssetError(f"model: the chat template in {where} is broken: {error}") from error


def _special_tokens(*sources: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for source in sources:
        for key in SPECIAL_TOKENS:
            value = source.get(key)
            value = value.get("content") if isinstance(value, dict) else value
            if isinstance(value, str):
                found.setdefault(key, value)
    return found


def _ids(config: Mapping[str, Any], key: str) -> tuple[int, ...]:
    value = config.get(key)
    return tuple(value) if isinstance(value, list) else () if value is None else (int(value),)


def _positive(folder: Path, config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value < 1:
        raise AssetError(f"model: {folder / 'config.json'} needs {key} as a positive integer, found {value!r}")
    return value
