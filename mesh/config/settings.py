"""Reads the configuration of a service from one TOML file, BATON_* variables and the command line.

Later sources win: defaults, the file, the environment, the command line. Within one source `[worker]` sets a key for
both tiers, and `[prefill]` or `[decode]` overrides it for one. `page_tokens` in `[decode]` is BATON_DECODE_PAGE_TOKENS,
top-level `model` is BATON_MODEL. An unknown key is an error that names its place and the nearest known key. At top
level, names of settings that users of other servers know (max-model-len) stand for our own."""

import contextlib
import re
import tomllib
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from mesh.config.adapter_config import AdapterFolder, adapters_in
from mesh.config.arrangement import default_workers, this_machine
from mesh.config.common_config import CommonConfig, TlsConfig
from mesh.config.config_checks import ConfigError
from mesh.config.model_config import ServedModelConfig
from mesh.config.model_tables import MODELS, each_model, highest, model_values, name_of
from mesh.config.services import GatewayConfig, MeshConfig
from mesh.config.setting_value import TOP, SettingValue
from mesh.config.worker_config import DecodeConfig, PrefillConfig, WorkerConfig

Config = TypeVar("Config", bound=TlsConfig | ServedModelConfig)

SECTIONS: dict[str, tuple[str, ...]] = {
    TOP: (*(field.name for field in fields(CommonConfig)), MODELS),
    "gateway": tuple(field.name for field in fields(GatewayConfig) if field.name != MODELS),
    "worker": tuple(field.name for field in fields(WorkerConfig)),
    "prefill": tuple(field.name for field in fields(PrefillConfig)),
    "decode": tuple(field.name for field in fields(DecodeConfig)),
    "mesh": ("prefill_workers", "decode_workers"),
}
# Names of other servers, at top level, with dashes or underscores, and the settings that they set.
ADAPTERS = "adapters"  # a setting at top level whose value is a table
FAMILIAR: dict[str, tuple[tuple[str, str], ...]] = {
    "max_model_len": ((TOP, "context_tokens"),),
    "served_model_name": ((TOP, "served_name"),),
    "max_num_seqs": (("decode", "max_batch"),),
    "max_num_batched_tokens": (("prefill", "step_tokens"), ("worker", "chunk_tokens")),
    "gpu_memory_utilization": (("worker", "memory_share"),),
    "kv_cache_dtype": (("worker", "kv_dtype"),),
    "lora_modules": ((TOP, "adapters"),),
    "max_loras": (("worker", "max_loras"),),
    "max_lora_rank": (("worker", "max_lora_rank"),),
    "memory_utilization": (("worker", "memory_share"),),
}
_FORCED = "BATON_PRODUCT_PATH"  # engine/model/paths.py reads it where weights are opened; it wins over the settings
API_KEY = "BATON_API_KEY"  # cli/connecting/api_key.py reads it: what a command shows to a gateway with keys
# Kubernetes puts such variables into every pod of a namespace that has a service named baton or baton-gateway.
_INJECTED = re.compile(r"BATON_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_\w+)?)")


@dataclass(frozen=True, slots=True)
class Settings:
    values: tuple[SettingValue, ...]

    def models(self) -> list["Settings"]:
        """The settings of each model; these alone, if there is no list of models."""
        return [Settings(tuple(values)) for values in each_model(self.values)] or [self]

    def chosen(self) -> "Settings":
        """These settings, without the models that `model` leaves out."""
        models = self.models()
        return models[0] if len(models) == 1 else self

    def for_worker(self) -> "Settings":
        """The settings of the one model that a worker loads."""
        models = self.models()
        if len(models) > 1:
            names = ", ".join(name_of(each.values) for each in models)
            raise ConfigError(f"model: a worker loads one model, and there are {names}: choose with --set model=NAME")
        return models[0]

    def gateway(self) -> GatewayConfig:
        sections = (TOP, "gateway", MODELS)
        models = self.models()
        first = models[0]._build(GatewayConfig, sections)
        if len(models) == 1:
            return first
        return replace(first, models=tuple(each._build(ServedModelConfig, sections) for each in models))

    def prefill(self) -> PrefillConfig:
        return self.for_worker()._build(PrefillConfig, (TOP, "worker", "prefill", MODELS))

    def decode(self) -> DecodeConfig:
        return self.for_worker()._build(DecodeConfig, (TOP, "worker", "decode", MODELS))

    def client(self) -> TlsConfig:
        """Settings of a client of the gateway. It needs no model, so all other settings are left unread."""
        return self._build(TlsConfig, (TOP, "gateway"))

    def mesh(self) -> MeshConfig:
        gateway = self.gateway()
        first, *further = (each._mesh(gateway) for each in self.models())
        return replace(first, further=tuple(further))

    def _mesh(self, gateway: GatewayConfig) -> MeshConfig:
        keys, sections = SECTIONS["mesh"], ("mesh", MODELS)
        prefill, decode = self.prefill(), self.decode()
        chosen = default_workers(this_machine(), pool_bytes=decode.pool_bytes, weights_bytes=_bytes_of(decode.model))
        set_here = {key: _convert(int, value) for key in keys if (value := self._last(sections, key))}
        prefills, decodes = (set_here.get(key, default) for key, default in zip(keys, chosen, strict=True))
        with self._said_by(sections, keys):
            return MeshConfig(
                prefills, decodes, gateway=gateway, prefill=prefill, decode=decode, by_machine=not set_here
            )

    def _build(self, kind: type[Config], sections: tuple[str, ...]) -> Config:
        hints = get_type_hints(kind)
        names = [field.name for field in fields(kind)]
        values = {key: _convert(hints[key], value) for key in names if (value := self._last(sections, key))}
        with self._said_by(sections, names):
            return kind(**values)

    @contextmanager
    def _said_by(self, sections: tuple[str, ...], keys: Sequence[str]) -> Iterator[None]:
        """An error of one of these keys names where its value comes from."""
        try:
            yield
        except ConfigError as error:
            key, _, problem = str(error).partition(": ")
            value = self._last(sections, key) if key in keys else None
            raise ConfigError(f"{value.origin}: {problem}" if value else str(error)) from None  # it ends with its key

    def _last(self, sections: tuple[str, ...], key: str) -> SettingValue | None:
        matching = [value for value in self.values if value.key == key and value.section in sections]
        return max(matching, key=lambda value: (value.rank, sections.index(value.section)), default=None)


def _bytes_of(model: Path | None) -> int:
    """The size of a model's weights; 0: the built-in one, or a folder that is not there."""
    if model is None:
        return 0
    return sum(file.stat().st_size for form in ("*.safetensors", "model.gguf") for file in model.glob(form))


def read_settings(
    file: Path | None = None, environment: Mapping[str, str] | None = None, overrides: Mapping[str, str] | None = None
) -> Settings:
    """All values of all sources. `overrides` come from the command line: {"decode.page_tokens": "16"}."""
    found: list[SettingValue] = []
    if file is not None:
        found += _from_file(file)
    found += _from_environment(environment or {})
    for name, text in (overrides or {}).items():
        section, _, key = name.rpartition(".")
        value = SettingValue(section, key, text, f"command line, {name}", Path.cwd(), 2)
        found += _checked(value, "command line")
    _refuse_twice(found)
    return Settings(tuple(highest(found)))


def _from_file(file: Path) -> Iterator[SettingValue]:
    try:
        content = tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror}); check the path") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: is not TOML: {error}") from None
    folder = file.resolve().parent
    for name, value in content.items():
        if not isinstance(value, dict) or name in (MODELS, ADAPTERS):
            yield from _checked(SettingValue(TOP, name, value, f"{file}, {name}", folder, 0), str(file))
            continue
        if name not in SECTIONS:
            raise ConfigError(f"{file}: unknown section [{name}]{_nearest(name, [*SECTIONS][1:])}")
        for key, raw in value.items():
            yield from _checked(SettingValue(name, key, raw, f"{file}, [{name}] {key}", folder, 0), str(file))


def _from_environment(environment: Mapping[str, str]) -> Iterator[SettingValue]:
    known = {_variable(section, key): (section, key) for section, keys in SECTIONS.items() for key in keys}
    known |= {_variable(TOP, key): (TOP, key) for key in FAMILIAR}
    for name, text in environment.items():
        if (
            not name.startswith("BATON_")
            or name in (_FORCED, API_KEY)
            or (name not in known and _INJECTED.fullmatch(name))
        ):
            continue
        if name not in known:
            raise ConfigError(f"environment: unknown variable {name}{_nearest(name, list(known))}")
        yield from _checked(SettingValue(*known[name], text, f"environment, {name}", Path.cwd(), 1), "environment")


def _variable(section: str, key: str) -> str:
    return "_".join(part for part in ("BATON", section.upper(), key.upper()) if part)


def _checked(value: SettingValue, where: str) -> Iterator[SettingValue]:
    """The value, or those that it stands for under a familiar name."""
    key = value.key.replace("-", "_")
    if value.section == TOP and key in FAMILIAR:
        for section, own in FAMILIAR[key]:
            yield replace(value, section=section, key=own)
        return
    if value.section == TOP and key == MODELS:
        yield from model_values(value)
        return
    _check_key(value, where)
    yield value


def _refuse_twice(values: list[SettingValue]) -> None:
    """No source may set one setting under two names: whichever lost would be ignored."""
    seen: dict[tuple[int, str, str], SettingValue] = {}
    for value in values:
        other = seen.setdefault((value.rank, value.section, value.key), value)
        if other is not value:
            raise ConfigError(f"{value.origin}: {other.origin} sets the same, {value.key}; leave one of them out")


def _check_key(value: SettingValue, where: str) -> None:
    if value.section not in SECTIONS or value.key not in SECTIONS[value.section]:
        known = SECTIONS.get(value.section, ())
        place = f" in [{value.section}]" if value.section else ""
        raise ConfigError(f"{where}: unknown key {value.key!r}{place}{_nearest(value.key, known)}")


def _nearest(name: str, known: Iterator[str] | tuple[str, ...] | list[str]) -> str:
    choices = list(known)
    longer = sorted(each for each in choices if name and each.startswith(name))[:3]
    close = longer or get_close_matches(name, choices, n=1)
    hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else "."
    return f"{hint} Valid: {', '.join(sorted(choices))}" if choices else ""


def _convert(kind: Any, value: SettingValue) -> Any:
    """The value as the field's type, or an error that names the expected type."""
    raw, text = value.raw, isinstance(value.raw, str) and value.rank > 0
    if isinstance(kind, types.UnionType):  # X | None: a source that leaves the key out means None
        kind = get_args(kind)[0]
    if kind is Path and isinstance(raw, str) and raw:
        return value.folder / Path(raw).expanduser()
    if kind is bool and text and raw.lower() in ("true", "1", "false", "0"):
        return raw.lower() in ("true", "1")
    if kind is int and text and re.fullmatch(r"-?[0-9]+(_[0-9]+)*", raw):
        return int(raw)
    if kind is float and not isinstance(raw, bool):
        with contextlib.suppress(TypeError, ValueError):
            return float(raw)
    if kind in (int, str, bool) and type(raw) is kind and not (text and kind is not str):
        return raw
    if kind == tuple[AdapterFolder, ...]:
        return adapters_in(value)
    if kind == tuple[str, ...]:
        parts = [raw] if isinstance(raw, str) and value.key == "served_name" else raw
        parts = raw.split(",") if text else parts
        if isinstance(parts, list) and all(isinstance(part, str) for part in parts):
            return tuple(part.strip() for part in parts if part.strip())
    name = {int: "a whole number", float: "a number", bool: "true or false", Path: "a path", str: "a string"}.get(
        kind, "a list of strings"
    )
    raise ConfigError(f"{value.origin}: expected {name}, got {raw!r}")
