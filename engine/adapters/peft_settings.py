"""Reads adapter_config.json of a PEFT folder: rank and scale of each module, and whatever Baton cannot compute by name.

Fields mean what they mean to peft. A field that would change the computation and is not supported is refused, never
ignored; so is one that is not known and is on."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

from engine.families.fields import ConfigFields
from engine.formats.errors import ModelError

CONFIG = "adapter_config.json"
PEFT_FOLDER = f"Name a PEFT folder with {CONFIG} and adapter_model.safetensors."
MOST_RANK = 256
TRAINED_AGAIN = "Merge the adapter into its base with peft (merge_and_unload), or train one without it."
# Fields that describe the training or the file, and change nothing that is computed.
_HARMLESS = frozenset(
    (
        *("auto_mapping", "base_model_name_or_path", "inference_mode", "peft_version", "revision", "task_type"),
        *("arrow_config", "corda_config", "eva_config", "loftq_config", "lora_ga_config", "qalora_group_size"),
        *("exclude_modules", "layers_pattern", "layers_to_transform", "lora_dropout", "megatron_core"),
        *("runtime_config", "velora_config"),
    )
)
_READ = frozenset(
    (
        *("peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "target_modules"),
        *("bias", "init_lora_weights", "modules_to_save", "ensure_weight_tying"),
    )
)
_CHANGES_BASE = ("pissa", "olora", "loftq", "corda", "lora_ga")  # they begin with other weights of the base
_WHY = {
    "use_dora": "is on: DoRA scales whole columns of the base's weights, which are not kept in that form",
}


@dataclass(frozen=True, slots=True)
class PeftSettings:
    path: Path
    rank: int
    alpha: float
    rank_pattern: Mapping[str, Any]
    alpha_pattern: Mapping[str, Any]
    rslora: bool
    targets: tuple[str, ...]  # endings of module names; empty: a regular expression or a word chooses modules
    saved: tuple[str, ...]  # endings of the names of modules that the adapter holds as a whole
    tying: bool  # what it has of the embedding holds for the head too, in a model where both are one
    base: str  # name of the model that it was trained on; empty: the file does not say

    @classmethod
    def of(cls, folder: Path) -> "PeftSettings":
        given = ConfigFields.of(folder / CONFIG, where=PEFT_FOLDER)
        if given.raw.get("peft_type") != "LORA":
            given.refuse("peft_type", f"{given.raw.get('peft_type')!r} is not LORA", TRAINED_AGAIN)
        _refuse_unsupported(given)
        targets = given.raw.get("target_modules")
        saved, base = given.raw.get("modules_to_save") or [], given.raw.get("base_model_name_or_path")
        if not isinstance(saved, list) or not all(isinstance(each, str) for each in saved):
            given.refuse("modules_to_save", "is not a list of names", TRAINED_AGAIN)
        return cls(
            path=given.path,
            rank=given.positive("r", 8),
            alpha=given.number("lora_alpha", 8.0),
            rank_pattern=_pattern(given, "rank_pattern"),
            alpha_pattern=_pattern(given, "alpha_pattern"),
            rslora=given.flag("use_rslora", False),
            targets=tuple(map(str, targets)) if isinstance(targets, list) else (),
            saved=tuple(saved),
            tying=given.flag("ensure_weight_tying", False),
            base=base if isinstance(base, str) else "",
        )

    def rank_of(self, module: str) -> int:
        return self._of("rank_pattern", self.rank_pattern, module, ConfigFields.positive) or self.rank

    def scale_of(self, module: str) -> float:
        """The factor of the product of a module's matrices."""
        rank = self.rank_of(module)
        alpha = self._of("alpha_pattern", self.alpha_pattern, module, ConfigFields.number) or self.alpha
        return alpha / (sqrt(rank) if self.rslora else rank)

    def _of(self, field: str, patterns: Mapping[str, Any], module: str, read: Any) -> Any:
        """The value of the first pattern that is the module's name or its end; None: no pattern is."""
        for pattern, value in patterns.items():
            try:
                found = re.match(rf"(.*\.)?({pattern})$", module)
            except re.error as error:
                raise ModelError(self.path, field, f"{pattern!r} is no pattern ({error})", TRAINED_AGAIN) from None
            if found:
                return read(ConfigFields(self.path, {f"{field} {pattern}": value}), f"{field} {pattern}")
        return None


def _refuse_unsupported(given: ConfigFields) -> None:
    init = given.raw.get("init_lora_weights")
    if isinstance(init, str) and init.lower().startswith(_CHANGES_BASE):
        problem = f"{init!r} begins with other weights of the base than those that are served"
        given.refuse("init_lora_weights", problem, "Save it with path_initial_model_for_weight_conversion.")
    if given.raw.get("bias", "none") != "none":
        given.refuse("bias", f"{given.raw['bias']!r} is not none: biases of the base are not replaced", TRAINED_AGAIN)
    for field, value in given.raw.items():
        if field in _HARMLESS or field in _READ or not value:
            continue
        given.refuse(field, _WHY.get(field, f"is {value!r}, which Baton does not compute"), TRAINED_AGAIN)


def _pattern(given: ConfigFields, field: str) -> Mapping[str, Any]:
    value = given.raw.get(field) or {}
    if not isinstance(value, dict):
        given.refuse(field, "is not an object of patterns", TRAINED_AGAIN)
    return value
