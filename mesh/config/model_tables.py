"""Several models in one configuration: [[models]] tables in the file, or the key `models` as a list of folders.

Each model becomes a section of its own, `models 0`, `models 1` and so on, whose values are more specific than those of
all other sections. `one_of` makes the settings of one model: its section is then called `models`."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mesh.config.config_checks import ConfigError
from mesh.config.setting_value import TOP, SettingValue

MODELS = "models"
KEYS = (
    "model",
    "served_name",
    "draft",
    "adapters",
    "max_loras",
    "max_lora_rank",
    "context_tokens",
    "pool_bytes",
    "quantize",
    "kv_dtype",
    "tool_format",
    "reasoning_format",
    "prefill_workers",
    "decode_workers",
)
Values = Sequence[SettingValue]


def model_values(value: SettingValue) -> Iterator[SettingValue]:
    """The values of all models that the key `models` of one source holds."""
    entries = value.raw.split(",") if isinstance(value.raw, str) and value.rank > 0 else value.raw
    if not isinstance(entries, list):
        raise ConfigError(f"{value.origin}: expected a list; write one table [[models]] for each model")
    folders = dict[str, list[str]]()  # names by folder: entries with equal folders are names of one model
    for number, entry in enumerate(entries):
        if isinstance(entry, dict):
            yield from _from_table(replace(value, origin=f"{value.origin} {number + 1}"), number, entry)
        elif isinstance(entry, str):
            name, folder = _split(entry.strip())
            if folder:
                folders.setdefault(folder, []).extend([name] if name else [])
        else:
            raise ConfigError(f"{value.origin}: {entry!r} is neither a folder nor a table")
    for number, (folder, names) in enumerate(folders.items(), len(entries)):
        yield replace(value, section=f"{MODELS} {number}", key="model", raw=folder)
        if names:
            yield replace(value, section=f"{MODELS} {number}", key="served_name", raw=names)


def highest(values: Values) -> list[SettingValue]:
    """A later source replaces the whole list of models of an earlier one."""
    rank = max((value.rank for value in values if _is_table(value)), default=0)
    return [value for value in values if not _is_table(value) or value.rank == rank]


def each_model(values: Values) -> list[list[SettingValue]]:
    """The settings of each model: of all, unless `model` at top level names one of them. Empty: there is no list."""
    sections = sorted({value.section for value in values if _is_table(value)}, key=_number)
    every = [one_of(values, section) for section in sections]
    chosen = max((v for v in values if (v.section, v.key) == (TOP, "model")), key=lambda v: v.rank, default=None)
    if not every or chosen is None:
        return every
    found = [each for each in every if str(chosen.raw) in spellings(each)]
    if not found:
        known = ", ".join(name_of(each) for each in every)
        raise ConfigError(f"{chosen.origin}: {chosen.raw!r} is none of the models in the list; there are {known}")
    return found[:1]


def one_of(values: Values, section: str) -> list[SettingValue]:
    kept = [v for v in values if not _is_table(v) and (v.section, v.key) != (TOP, "model")]
    return kept + [replace(value, section=MODELS) for value in values if value.section == section]


def spellings(values: Values) -> list[str]:
    """Every text that chooses this model: its served names, its folder, and the folder's name."""
    found = list[str]()
    for value in values:
        if value.section == MODELS and value.key == "served_name":
            found += value.raw if isinstance(value.raw, list) else str(value.raw).split(",")
    for value in values:
        if value.section == MODELS and value.key == "model":
            folder, raw = value.folder / Path(str(value.raw)).expanduser(), str(value.raw)
            found += [raw.partition("@")[0], raw, folder.resolve().name, str(folder)]
    return [name.strip() for name in found]


def name_of(values: Values) -> str:
    return next(iter(spellings(values)), "one without a folder")


def _from_table(value: SettingValue, number: int, table: dict[str, Any]) -> Iterator[SettingValue]:
    for key, raw in table.items():
        if key not in KEYS:
            raise ConfigError(f"{value.origin}: unknown key {key!r} in [[models]]; there are {', '.join(KEYS)}")
        yield replace(value, section=f"{MODELS} {number}", key=key, raw=raw, origin=f"{value.origin} {key}")
    if "model" not in table:
        raise ConfigError(f"{value.origin}: needs `model`, a Hugging Face folder or ORG/NAME on the hub")


def _split(entry: str) -> tuple[str, str]:
    """NAME=FOLDER or FOLDER; a folder that begins with / . or ~ may hold an equals sign itself."""
    name, equals, folder = entry.partition("=")
    return (name.strip(), folder.strip()) if equals and entry[0] not in "/.~" else ("", entry)


def _is_table(value: SettingValue) -> bool:
    return value.section.startswith(f"{MODELS} ")


def _number(section: str) -> int:
    return int(section.removeprefix(MODELS))
