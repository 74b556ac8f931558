"""A model that is open: in this process, or behind a mesh of processes of this machine."""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from library.settings import overrides_of

Workers = int | tuple[int, int]  # as many in each tier, or prefill and decode
_COMMAND_LINE = "command line, "  # begins errors about settings, and there is none here


@dataclass(frozen=True, slots=True)
class OpenModel:
    door: Any  # library.door.ModelDoor, which is imported late
    at_once: int  # answers that are worth asking for at the same time


@dataclass(frozen=True, slots=True)
class ModelOrder:
    """The arguments of `LLM` and `AsyncLLM`, checked."""

    model: str | None
    workers: tuple[int, int] | None
    overrides: Mapping[str, str]

    @classmethod
    def of(cls, model: Any, workers: Any, arguments: Mapping[str, Any]) -> "ModelOrder":
        if not isinstance(model, str | os.PathLike | None):
            raise TypeError(f"model must be a folder, a GGUF file or ORG/NAME of the hub, not {model!r}")
        if model is not None and not str(model):
            raise ValueError("model is empty: leave it out for the built-in model")
        return cls(None if model is None else str(model), _pair(workers), overrides_of(arguments))


def _pair(workers: Any) -> tuple[int, int] | None:
    if workers is None:
        return None
    pair = (workers, workers) if isinstance(workers, int) else workers
    numbers = isinstance(pair, tuple | list) and len(pair) == 2 and all(isinstance(each, int) for each in pair)
    if not numbers or isinstance(workers, bool):
        raise TypeError(f"workers must be a number, or (prefill, decode), not {workers!r}")
    if pair[0] < 0 or pair[1] < 1:
        raise ValueError(f"workers is {workers!r}: a mesh needs at least one decode worker, and none is negative")
    return pair[0], pair[1]


@asynccontextmanager
async def opened(order: ModelOrder) -> AsyncIterator[OpenModel]:
    """Imports what a server needs, which takes a moment."""
    from cli.output import INSTALL_SERVE

    try:
        import library.one_process  # noqa: F401
    except ModuleNotFoundError as error:
        raise ImportError(f"the Python module {error.name} is missing: {INSTALL_SERVE}") from None
    from mesh.config.config_checks import ConfigError

    way = _in_this_process(order) if order.workers is None else _behind_a_mesh(order, *order.workers)
    try:
        async with way as found:
            yield found
    except ConfigError as error:
        raise ConfigError(str(error).removeprefix(_COMMAND_LINE)) from None


@asynccontextmanager
async def _in_this_process(order: ModelOrder) -> AsyncIterator[OpenModel]:
    from cli.connecting.http_client import HttpClient
    from cli.connecting.http_url import HttpUrl
    from cli.local_mesh.services import with_model
    from cli.models.hub import with_models
    from library.door import ModelDoor
    from library.one_process import one_process
    from mesh.config.settings import read_settings

    settings = with_models(read_settings(None, os.environ, _settings(order, {"decode.itl_target_ms": "0"})))
    gateway, decode = with_model(settings.gateway()), with_model(settings.decode())
    async with one_process(gateway, decode) as connect:
        door = ModelDoor(HttpClient(HttpUrl(False, "localhost", 80, "/v1"), {}, connect))
        try:
            yield OpenModel(door, 2 * decode.max_batch)
        finally:
            door.close()


@asynccontextmanager
async def _behind_a_mesh(order: ModelOrder, prefill: int, decode: int) -> AsyncIterator[OpenModel]:
    from cli.connecting.http_client import HttpClient
    from cli.connecting.http_url import HttpUrl
    from cli.local_mesh.own_mesh import own_mesh
    from cli.models.hub import with_models
    from library.door import ModelDoor
    from mesh.config.settings import read_settings

    own = {"mesh.prefill_workers": str(prefill), "mesh.decode_workers": str(decode)}
    own |= {"gateway.queue_seconds": "0", "gateway.max_waiting": "1000000"}
    overrides = _settings(order, {}) | own
    settings = with_models(read_settings(None, os.environ, overrides))
    at_once = 2 * decode * settings.decode().max_batch
    async with own_mesh(overrides) as running:
        host, _, port = running.http_address.rpartition(":")
        door = ModelDoor(HttpClient(HttpUrl(False, host, int(port), "/v1"), {}))
        try:
            yield OpenModel(door, at_once)
        finally:
            door.close()


def _settings(order: ModelOrder, defaults: Mapping[str, str]) -> dict[str, str]:
    """`defaults`: what a caller without a reader wants, unless the arguments say otherwise."""
    from mesh.config.model_config import BUILTIN_NAME

    named = {} if order.model in (None, BUILTIN_NAME) else {"model": str(order.model)}
    return {**defaults, **order.overrides, **named}
