"""The adapters of a model in the configuration: names for clients, and folders in PEFT's form.

They stand as `[adapters]` in the file, one line `NAME = "FOLDER"` for each, or as a list of NAME=FOLDER."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mesh.config.config_checks import ConfigError
from mesh.config.model_folder import ADAPTER
from mesh.config.setting_value import SettingValue

MOST_LETTERS = 128


@dataclass(frozen=True, slots=True)
class AdapterFolder:
    name: str  # what clients write into `model`
    folder: Path


def adapters_in(value: SettingValue) -> tuple[AdapterFolder, ...]:
    """The adapters of one value: a table, or a list of NAME=FOLDER; a relative folder lies beside the file."""
    raw, pairs = value.raw.split(",") if isinstance(value.raw, str) else value.raw, list[tuple[Any, Any]]()
    if isinstance(raw, dict):
        pairs = list(raw.items())
    elif isinstance(raw, list):
        split = [str(each).partition("=") for each in raw]
        pairs = [(name.strip(), folder.strip()) for name, _, folder in split]
    if not pairs or not all(isinstance(each, str) and each for pair in pairs for each in pair):
        raise ConfigError(f"{value.origin}: expected NAME=FOLDER for each adapter, got {value.raw!r}")
    if len(dict(pairs)) < len(pairs):
        raise ConfigError(f"{value.origin}: names one adapter twice: {value.raw!r}")
    return tuple(AdapterFolder(name, value.folder / Path(folder).expanduser()) for name, folder in pairs)


def check_adapters(adapters: tuple[AdapterFolder, ...], served: tuple[str, ...]) -> None:
    for each in adapters:
        if problem := name_problem(each.name):
            raise ConfigError(f"adapters: {problem}")
        if each.name in served:
            raise ConfigError(f"adapters: {each.name!r} is a name of the model itself; give the adapter another one")
        if not (each.folder / ADAPTER).is_file():
            raise ConfigError(f"adapters: {each.name}: {each.folder} has no {ADAPTER}; name a folder in PEFT's form")


def name_problem(name: str) -> str:
    """Why no adapter can have this name; empty: one can."""
    if not 0 < len(name) <= MOST_LETTERS or not name.isprintable() or name != name.strip():
        return f"{name[:MOST_LETTERS]!r} is no name: it needs 1 to {MOST_LETTERS} printable characters"
    return ""
