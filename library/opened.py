"""A model that is open: in this process, or behind a mesh of processes of this machine."""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from library.settings import overrides_of

Workers = int | tuple[int, int]  # of each tier, or prefill and decode


@dataclass(frozen=True, slots=True)
class OpenModel:
    door: Any  # library.door.ModelDoor, which is imported late
    at_once: int  # answers that are worth asking for at the same time


@asynccontextmanager
async def opened(model: str | None, workers: Workers | None, arguments: Mapping[str, Any]) -> AsyncIterator[OpenModel]:
    """Imports what a server needs, which takes a moment."""
    from cli.output import INSTALL_SERVE

    try:
        import library.one_process  # noqa: F401
    except ModuleNotFoundError as error:
        raise ImportError(f"the Python module {error.name} is missing: {INSTALL_SERVE}") from None
    from cli.connecting.http_client import HttpClient
    from cli.connecting.http_url import HttpUrl
    from cli.local_mesh.own_mesh import own_mesh
    from cli.local_mesh.services import with_model
    from cli.models.hub import with_models
    from library.door import ModelDoor
    from library.one_process import one_process
    from mesh.config.settings import read_settings

    overrides = overrides_of(arguments) | ({} if model is None else {"model": str(model)})
    if workers is not None:
        prefills, decodes = (workers, workers) if isinstance(workers, int) else workers
        overrides |= {"mesh.prefill_workers": str(prefills), "mesh.decode_workers": str(decodes)}
        overrides |= {"gateway.queue_seconds": "0", "gateway.max_waiting": "1000000"}
        settings = with_models(read_settings(None, os.environ, overrides))
        at_once = 2 * decodes * settings.decode().max_batch
        async with own_mesh(overrides) as running:
            host, _, port = running.http_address.rpartition(":")
            door = ModelDoor(HttpClient(HttpUrl(False, host, int(port), "/v1"), {}))
            try:
                yield OpenModel(door, at_once)
            finally:
                door.close()
        return
    overrides.setdefault("decode.itl_target_ms", "0")  # nobody reads along: chunks have their full size
    settings = with_models(read_settings(None, os.environ, overrides))
    gateway, decode = with_model(settings.gateway()), with_model(settings.decode())
    async with one_process(gateway, decode) as connect:
        door = ModelDoor(HttpClient(HttpUrl(False, "localhost", 80, "/v1"), {}, connect))
        try:
            yield OpenModel(door, 2 * decode.max_batch)
        finally:
            door.close()
