"""The mesh of a run: one that runs already, or one that lives as long as the run."""

import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from cli.batch.http_asker import HttpAsker
from cli.connecting.api_key import api_key_headers
from cli.connecting.http_client import RequestFailed
from cli.connecting.http_url import HttpUrl, parse_url
from cli.errors import MeshError
from cli.local_mesh.own_mesh import own_mesh
from cli.local_mesh.ports import dialable
from cli.models.hub import with_models
from cli.output import say
from gateway.batches.problems import BatchRefused
from gateway.batches.retrying import LATER
from mesh.config.config_checks import ConfigError, split_address
from mesh.config.settings import read_settings

DEFAULT_HTTP = "127.0.0.1:8000"
DEFAULT_CONCURRENCY = 64  # a gateway does not tell the size of its workers' batches
BUILTIN = "built-in"
LOOK_SECONDS = 10.0
# No request waits too long here, and many may wait.
PATIENT = {"gateway.queue_seconds": "0", "gateway.max_waiting": "1000000"}


@dataclass(frozen=True, slots=True)
class BatchMesh:
    asker: HttpAsker
    concurrency: int


def parse_http(text: str) -> HttpUrl:
    """HOST:PORT, or the base URL of an API; BatchRefused if it is neither."""
    try:
        url = parse_url(text if "://" in text else f"http://{text}")
    except ConfigError:
        url = None
    if url is None or not re.fullmatch(r"[\w.:-]+", url.host):
        raise BatchRefused(
            f"--http {text!r} is no address; write HOST:PORT, or an URL such as https://mesh.example:8443/v1"
        )
    return url


@asynccontextmanager
async def running(url: HttpUrl, timeout_seconds: float) -> AsyncIterator[BatchMesh]:
    """The mesh behind this address. MeshError if no server answers there."""
    server = str(replace(url, path=url.path.removesuffix("/v1")))
    asker = HttpAsker(url, api_key_headers(), timeout_seconds=timeout_seconds)
    try:
        try:
            status, problem = await asker.look(LOOK_SECONDS)
        except RequestFailed as error:
            raise MeshError(
                f"no mesh answers at {server} ({error}); start one with `baton up`, name its address with --http, or "
                "let --model start one for this run"
            ) from None
        if 400 <= status < 500 and status not in LATER:
            raise MeshError(f"{server} answers /v1/models with status {status}: {problem or 'is it a Baton gateway?'}")
        yield BatchMesh(asker, DEFAULT_CONCURRENCY)
    finally:
        asker.close()


@asynccontextmanager
async def started(model: str, timeout_seconds: float) -> AsyncIterator[BatchMesh]:
    """A mesh of this model that ends with the run. Other settings come from the environment, as for `baton up`."""
    settings = PATIENT | ({} if model == BUILTIN else {"model": model})
    mesh = with_models(read_settings(None, os.environ, settings)).mesh()
    say(
        f"starting a mesh for this run: {model}, {mesh.all_prefill_workers} prefill + {mesh.all_decode_workers} decode "
        "workers"
    )
    try:
        async with own_mesh(settings, on_line=_show) as gateway:
            address = dialable(gateway.http_address)
            say(f"the mesh serves at http://{address}; it ends with the run")
            url = HttpUrl(False, *split_address(address), "/v1")
            asker = HttpAsker(url, api_key_headers(), timeout_seconds=timeout_seconds)
            try:
                yield BatchMesh(asker, 2 * mesh.all_decode_workers * mesh.decode.max_batch)
            finally:
                asker.close()
                say("stopping the mesh")
    finally:
        say("the mesh has ended")


def _show(name: str, line: str) -> None:
    """Print a process's line if a user must know it: a process died."""
    if "starts again" in line:
        say(f"{name} {line}")
