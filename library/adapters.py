"""`LoRARequest`: the adapter with which prompts are computed, as vLLM's class of this name."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Load = Callable[[str, str], Awaitable[None]]  # (name, folder): all workers have the adapter when it returns


@dataclass(frozen=True, slots=True)
class LoRARequest:
    lora_name: str
    lora_int_id: int = 0  # vLLM's number of the adapter; here the name and the folder say which one it is
    lora_path: str = ""  # a folder in PEFT's form; empty: the name is one of the setting `adapters`
    load_inplace: bool = False  # read the folder again, because it holds another content than before


class LoadedAdapters:
    """The adapters that an open model was asked for: each is loaded when it is first asked for.

    A name with another folder than before is another adapter, and gets a name of its own at the model: requests that
    run keep the one that they asked for."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._names = dict[tuple[str, str], str]()  # the model's names, by name and folder
        self._loading = asyncio.Lock()

    async def body(self, request: LoRARequest | None) -> dict[str, Any]:
        """The fields of a request that is computed with this adapter."""
        return {} if request is None else {"model": await self.name(request)}

    async def name(self, request: LoRARequest) -> str:
        name, folder = request.lora_name, request.lora_path
        if not folder:
            return name
        async with self._loading:
            known = self._names.get((name, folder))
            if known is None or request.load_inplace:
                folders = sum(each == name for each, _ in self._names)
                known = known or (f"{name}~{folders + 1}" if folders else name)
                await self._load(known, folder)
                self._names[name, folder] = known
        return known


def adapter_of(request: Any) -> LoRARequest | None:
    """TypeError or ValueError where it is none."""
    if request is None:
        return None
    try:
        name, path = request.lora_name, request.lora_path
    except AttributeError:
        raise TypeError(f"lora_request must be a LoRARequest, not {type(request).__name__}") from None
    if not name or not isinstance(name, str):
        raise ValueError(f"lora_request: lora_name must be a text that is not empty, not {name!r}")
    again = bool(getattr(request, "load_inplace", False))
    if again and not path:
        raise ValueError("lora_request: load_inplace needs a lora_path, the folder to read again")
    return LoRARequest(name, lora_path=_absolute(path) if path else "", load_inplace=again)


def adapters_for_each(request: Any, count: int) -> list[LoRARequest | None]:
    """The adapter of each of so many prompts, from one for all, or from a list with one or None for each."""
    if not isinstance(request, list | tuple):
        return [adapter_of(request)] * count
    if len(request) != count:
        raise ValueError(f"lora_request has {len(request)} entries for {count} prompts: give one, or one for each")
    return [adapter_of(each) for each in request]


def adapters_setting(value: Any) -> str:
    """The setting `adapters` from a mapping of names to folders, or from a list of LoRARequest or NAME=FOLDER."""
    if isinstance(value, str):
        return value
    pairs = list(value.items()) if isinstance(value, Mapping) else [_pair(each) for each in _listed(value)]
    for name, folder in pairs:
        if "," in f"{name}{folder}" or "=" in str(name):
            raise ValueError(f"adapters: {name}={folder} has a comma, or an = in its name; load it by a LoRARequest")
    return ",".join(f"{name}={_absolute(folder)}" for name, folder in pairs)


def _listed(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return list(value)
    what = "a dict of names to folders, or a list of LoRARequest or NAME=FOLDER"
    raise TypeError(f"adapters must be {what}, not {type(value).__name__}")


def _pair(each: Any) -> tuple[str, str]:
    name, _, folder = each.partition("=") if isinstance(each, str) else ("", "", "")
    if not isinstance(each, str) and (request := adapter_of(each)) is not None:
        name, folder = request.lora_name, request.lora_path
    if not name or not folder:
        raise ValueError(f"adapters: {each!r} needs a name and a folder")
    return name.strip(), folder.strip()


def _absolute(folder: Any) -> str:
    """Workers may have another working folder than the caller."""
    return str(Path(folder).expanduser().absolute())
