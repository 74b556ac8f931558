"""Reads single fields of a config.json. A field that is missing or has no sense is an error that names it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from engine.formats.errors import ModelError
from mesh.config.small_files import UnfitFile, read_small

DAMAGED = "The folder is damaged; copy or download it again."
_MODEL_FOLDER = "Give the path of a Hugging Face model folder (config.json, *.safetensors, tokenizer.json)."
OTHER = "Baton cannot compute this; serve a model without it."
_LARGEST = 2.0**127  # larger numbers are infinite in fp32
_MOST = {"num_hidden_layers": 4096, "max_position_embeddings": 1 << 27}  # more is a mistake that would take all memory


@dataclass(frozen=True, slots=True)
class ConfigFields:
    path: Path
    raw: dict[str, Any]

    @classmethod
    def of(cls, path: Path, *, where: str = _MODEL_FOLDER) -> "ConfigFields":
        """The fields of this file. `where`: what to do if it is missing."""
        try:
            raw = json.loads(read_small(path))
        except (FileNotFoundError, NotADirectoryError):
            raise ModelError(path, "file", "does not exist", where) from None
        except UnfitFile as error:
            raise ModelError(path, "file", str(error), DAMAGED) from None
        except (OSError, ValueError, RecursionError) as error:
            raise ModelError(path, "file", f"cannot be read as JSON ({error})", DAMAGED) from None
        if not isinstance(raw, dict):
            raise ModelError(path, "file", "is not a JSON object", DAMAGED)
        return cls(path, raw)

    def inside(self, raw: dict[str, Any]) -> "ConfigFields":
        """The fields of an object that stands in the same file."""
        return ConfigFields(self.path, raw)

    def refuse(self, field: str, problem: str, remedy: str = OTHER) -> NoReturn:
        raise ModelError(self.path, field, problem, remedy)

    def positive(self, field: str, default: int | None = None) -> int:
        value = self.raw.get(field)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            self.refuse(field, f"{value!r} is not a positive whole number", DAMAGED)
        if value > _MOST.get(field, value):
            self.refuse(field, f"{value} is more than {_MOST[field]}", DAMAGED)
        return value

    def number(self, field: str, default: float | None = None) -> float:
        value = self.raw.get(field)
        value = default if value is None else value
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < _LARGEST:
            self.refuse(field, f"{value!r} is not a positive number that fp32 holds", DAMAGED)
        return float(value)

    def flag(self, field: str, default: bool) -> bool:
        value = self.raw.get(field, default)
        if not isinstance(value, bool):
            self.refuse(field, f"{value!r} is neither true nor false", DAMAGED)
        return value

    def numbers(self, field: str, count: int) -> tuple[float, ...]:
        """A list of `count` positive numbers."""
        values = self.raw.get(field)
        if not isinstance(values, list) or len(values) != count:
            self.refuse(field, f"is not a list of {count} numbers", DAMAGED)
        return tuple(self.inside({field: value}).number(field) for value in values)
