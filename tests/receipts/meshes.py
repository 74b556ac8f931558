"""Meshes of the built-in model in several shapes, and the model with one weight that differs by its last bit."""

import json
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from cli.local_mesh.ports import free_address
from cli.local_mesh.running import running_mesh
from cli.local_mesh.services import services_of
from engine.builtin import DRAFT, MODEL
from mesh.config.settings import read_settings

START_SECONDS = 120.0
SMALL_SHAPE = {"mesh.prefill_workers": "1", "mesh.decode_workers": "1"}
# Everything that must not change an answer is another one here.
OTHER_SHAPE = {
    "mesh.prefill_workers": "2",
    "mesh.decode_workers": "2",
    "worker.page_tokens": "16",
    "worker.chunk_tokens": "64",
    "worker.transports": "tcp",
    "worker.prefix_cache": "false",
    "worker.speculation": "off",
}


@dataclass(frozen=True, slots=True)
class Doors:
    url: str
    grpc: str


@asynccontextmanager
async def mesh_of(folder: Path, shape: Mapping[str, str], model: Path | None = None) -> AsyncIterator[Doors]:
    """A mesh of this shape, with the built-in pair or another model of the same tokenizer."""
    addresses = {f"gateway.{name}_address": free_address() for name in ("http", "grpc", "worker")}
    overrides = {"cache_folder": str(folder), "served_name": "tiny", **addresses, **shape}
    if model is not None:
        overrides |= {"model": str(model), "draft": str(DRAFT)}
    config = read_settings(overrides=overrides).mesh()
    services = services_of(config, file=None, overrides=overrides, otlp_endpoint="")
    async with running_mesh(config, services, lambda name, line: None, START_SECONDS):
        yield Doors(f"http://{config.gateway.http_address}", config.gateway.grpc_address)


def with_one_weight_changed(folder: Path) -> Path:
    """A copy of the built-in model. One of its weights differs by the last bit of its mantissa."""
    changed = folder / "changed"
    shutil.copytree(MODEL, changed)
    file = next(changed.glob("*.safetensors"))
    data = bytearray(file.read_bytes())
    header = int.from_bytes(data[:8], "little")
    tensors = json.loads(data[8 : 8 + header])
    offsets = [each["data_offsets"] for name, each in tensors.items() if name != "__metadata__"]
    largest = max(offsets, key=lambda pair: int(pair[1] - pair[0]))
    data[8 + header + largest[0]] ^= 1  # little endian: the lowest bit of a weight
    file.write_bytes(data)
    return changed
