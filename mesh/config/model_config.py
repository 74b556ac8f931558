"""One model of a gateway: its folder, the names by which clients call it, and how its text is read.

A gateway has one of these for each model that it serves (`GatewayConfig.served` in mesh/config/services.py). Workers
load one model each and need no such list."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mesh.config.adapter_config import AdapterFolder, check_adapters
from mesh.config.config_checks import ConfigError, check_choice, check_range
from mesh.config.model_folder import why_no_model

TOOL_FORMATS = ("auto", "none", "hermes", "mistral", "llama3", "harmony")
REASONING_FORMATS = ("auto", "none", "think", "mistral", "harmony")
BUILTIN_NAME = "baton-tiny"


@dataclass(frozen=True, kw_only=True)
class ServedModelConfig:
    model: Path | None = None  # Hugging Face folder; None: the built-in model
    served_name: tuple[str, ...] = ()  # what clients call it; empty: the folder's name
    adapters: tuple[AdapterFolder, ...] = ()  # LoRA adapters of the model, by the names that clients write
    context_tokens: int = 0  # tokens of a prompt and its answer, at most; 0: as many as the model allows
    tool_format: str = "auto"  # how the model writes tool calls: auto | none | hermes | mistral | llama3 | harmony
    reasoning_format: str = "auto"  # how it marks its reasoning: auto | none | think | mistral | harmony

    def __post_init__(self) -> None:
        check_folder("model", self.model)
        check_range("context_tokens", self.context_tokens, 0, 1 << 27)
        check_adapters(self.adapters, self.names)
        check_choice("tool_format", self.tool_format, TOOL_FORMATS)
        check_choice("reasoning_format", self.reasoning_format, REASONING_FORMATS)

    @property
    def names(self) -> tuple[str, ...]:
        """The names that clients may write, the one for logs and metrics first."""
        return names_of(self.model, self.served_name)

    @property
    def folder_name(self) -> str:
        """The name under which a worker presents the model if its settings name it otherwise, or not at all."""
        return names_of(self.model, ())[0]


def names_of(model: Path | None, served_name: tuple[str, ...]) -> tuple[str, ...]:
    return served_name or ((model.resolve().name if model else BUILTIN_NAME),)


def check_folder(key: str, folder: Path | None) -> None:
    if folder is not None and (problem := why_no_model(folder)):
        raise ConfigError(f"{key}: {problem}")


def check_models(models: Sequence[ServedModelConfig]) -> None:
    """Every name stands for one model, and every folder has one entry."""
    folders, owners = dict[Path | None, str](), dict[str, str]()
    for each in models:
        root = each.names[0]
        for name in (*each.names, *(adapter.name for adapter in each.adapters)):
            if name in owners:
                raise ConfigError(
                    f"models: the name {name!r} stands for two models, {owners[name]} and {each.model}; give each "
                    "names of its own with served_name"
                )
            owners[name] = str(each.model)
        if each.model in folders:
            raise ConfigError(
                f"models: {each.model} is there as {folders[each.model]!r} and as {root!r}; write both names into one "
                "served_name"
            )
        folders[each.model] = root
