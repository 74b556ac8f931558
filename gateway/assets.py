"""What the front door needs of a model's folder: tokenizer, chat template, context length, end-of-sequence ids.

Weights are never touched. Whatever is missing or broken is an error at start that names the file and what to do."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from tokenizers import Tokenizer

from gateway.chat import ChatTemplate, Now
from gateway.tokenizer import ModelTokenizer
from gateway.tools import why_no_tools
from mesh.config import ConfigError

_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")


_SAMPLING = {"temperature": (0.0, 100.0), "top_k": (0, 2**31 - 1), "top_p": (1e-9, 1.0), "min_p": (0.0, 1.0)}


class AssetError(ConfigError):
    """A model folder that cannot be served."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """How the model is sampled where a request says nothing: what its makers recommend."""

    temperature: float = 1.0
    top_k: int = 0  # all
    top_p: float = 1.0
    min_p: float = 0.0


@dataclass(frozen=True)
class Assets:
    name: str  # as clients call the model
    tokens: ModelTokenizer
    template: ChatTemplate | None  # None: the model takes no chat
    why_no_tools: str | None  # None: it takes tools too
    context_tokens: int
    vocabulary: int  # ids from 0 to this, exclusive
    eos_ids: tuple[int, ...]
    defaults: Defaults = Defaults()


def load_assets(folder: Path, name: str, now: Now | None = None) -> Assets:
    config = _read(folder / "config.json")
    text = config.get("text_config", config)
    generation = _read(folder / "generation_config.json", optional=True)
    about = _read(folder / "tokenizer_config.json", optional=True)
    tokenizer = _tokenizer(folder / "tokenizer.json")
    special = _special_tokens(about, _read(folder / "special_tokens_map.json", optional=True))
    eos = {*_ids(config, "eos_token_id"), *_ids(text, "eos_token_id"), *_ids(generation, "eos_token_id")}
    template = _template(folder, about, special, now)
    named = tokenizer.token_to_id(special["eos_token"]) if "eos_token" in special else None
    return Assets(
        name=name,
        tokens=ModelTokenizer(tokenizer),
        template=template,
        why_no_tools=why_no_tools(template) if template is not None else "the model has no chat template",
        context_tokens=_positive(folder, text, "max_position_embeddings"),
        vocabulary=_positive(folder, text, "vocab_size"),
        eos_ids=tuple(sorted(eos if named is None else eos | {named})),
        defaults=_defaults(folder, generation),
    )


def _defaults(folder: Path, generation: Mapping[str, Any]) -> Defaults:
    """`do_sample: false` is how such a file says greedy."""
    said: dict[str, Any] = {name: generation[name] for name in _SAMPLING if generation.get(name) is not None}
    for name, value in said.items():
        low, high = _SAMPLING[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise AssetError(
                f"model: {folder / 'generation_config.json'}: {name} is {value!r}; it must be from {low} to {high}"
            )
    if "top_k" in said:
        said["top_k"] = int(said["top_k"])
    if generation.get("do_sample") is False:
        said["temperature"] = 0.0
    return Defaults(**said)


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


def _tokenizer(file: Path) -> Tokenizer:
    if not file.is_file():
        raise AssetError(
            f"model: {file} is missing; the gateway needs a fast tokenizer. With transformers: "
            "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise AssetError(f"model: {file} is no tokenizer: {error}") from error


def _template(
    folder: Path, about: Mapping[str, Any], special: Mapping[str, str], now: Now | None
) -> ChatTemplate | None:
    file = folder / "chat_template.jinja"
    source: Any = file.read_text(encoding="utf-8") if file.is_file() else about.get("chat_template")
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
        for key in _SPECIAL:
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
