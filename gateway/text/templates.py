"""The chat templates in a model's folder, by name, found where transformers finds them.

`default` is the one for chats, `tool_use` the one for chats with tools if there is one; a request may name others."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jinja2

from gateway.text.chat import ChatTemplate
from gateway.text.jinja import Now
from mesh.config.config_checks import ConfigError
from mesh.config.small_files import read_small

DEFAULT, TOOL_USE = "default", "tool_use"


def load_templates(
    folder: Path, tokenizer_config: Mapping[str, Any], special: Mapping[str, str], now: Now | None
) -> dict[str, ChatTemplate]:
    """Files come before tokenizer_config.json: chat_template.jinja is the default one, the files of
    additional_chat_templates/ have their names."""
    found = {name: (where, source) for name, where, source in _sources(folder, tokenizer_config)}
    templates: dict[str, ChatTemplate] = {}
    for name, (where, source) in found.items():
        try:
            templates[name] = ChatTemplate(source, special, now)
        except (jinja2.TemplateError, TypeError) as error:
            raise ConfigError(f"model: the chat template in {where} is broken: {error}") from error
    return templates


def _sources(folder: Path, tokenizer_config: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Name, place and source of each. Any file makes those of tokenizer_config.json void, as in transformers."""
    file = folder / "chat_template.jinja"
    files = [(DEFAULT, file)] if file.is_file() else []
    files += [(path.stem, path) for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))]
    for name, path in files:
        yield name, str(path), _read(path)
    listed, where = tokenizer_config.get("chat_template"), str(folder / "tokenizer_config.json")
    if files or listed is None:
        return
    if not isinstance(listed, list):
        yield DEFAULT, where, listed
        return
    for entry in listed:
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise ConfigError(f"model: {where}: each entry of chat_template needs a name and a template")
        yield entry["name"], f"{where} ({entry['name']})", entry.get("template")


def _read(path: Path) -> str:
    try:
        return read_small(path).decode()
    except (OSError, ValueError) as error:
        raise ConfigError(f"model: {path} {error}") from error
