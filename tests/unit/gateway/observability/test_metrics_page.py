"""The gateway as a process serves `/metrics` or not, and front doors count the errors that clients get."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest

from baton.inference.v1 import inference_pb2 as pb
from cli.local_mesh.ports import free_address
from gateway.main import serve
from gateway.observability.metrics_page import SHARED_SECONDS, SharedPages
from mesh.config.config_checks import ConfigError
from mesh.config.services import GatewayConfig
from mesh.telemetry.spans import Silent
from tests.sim.loop import virtual
from tests.unit.gateway.conftest import FakeCore


@asynccontextmanager
async def serving(folder: Path, **settings: Any) -> AsyncIterator[httpx2.AsyncClient]:
    ports: dict[str, Any] = {f"{port}_address": free_address() for port in ("http", "grpc", "worker")}
    config = GatewayConfig(model=folder, served_name=("tiny",), **ports, **settings)
    task = asyncio.ensure_future(serve(config, Silent()))
    try:
        async with (
            httpx2.AsyncClient(base_url=f"http://{config.http_address}", timeout=None) as client,
            asyncio.timeout(60),
        ):
            while True:
                try:
                    await client.get("/health")
                    break
                except httpx2.ConnectError:
                    assert not task.done(), task.result()
                    await asyncio.sleep(0.02)
            yield client
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_metrics_are_served_with_and_without_a_slash_and_hold_no_name_that_a_client_made_up(folder: Path) -> None:
    async with serving(folder) as client:
        refused = await client.post("/v1/completions", json={"model": "made-up", "prompt": "x"})
        assert refused.status_code == 404
        for path in ("/metrics", "/metrics/"):
            page = await client.get(path)
            assert page.status_code == 200 and page.headers["content-type"].startswith("text/plain; version=0.0.4")
            assert 'baton_errors_total{reason="UNKNOWN_MODEL"} 1\n' in page.text
            assert 'vllm:num_requests_running{model_name="tiny",engine="0"} 0\n' in page.text
            assert "made-up" not in page.text


@dataclass
class SlowWriter:
    """Writes pages in half a second of virtual time; counts how many are written, and at one time."""

    seconds: float = 0.5
    written: list[bool] = field(default_factory=list)
    at_once: int = 0

    async def write(self, openmetrics: bool) -> bytes:
        self.at_once += 1
        assert self.at_once == 1, "one page is written at a time"
        await asyncio.sleep(self.seconds)
        self.at_once -= 1
        self.written.append(openmetrics)
        return b"%d" % len(self.written)


@virtual
async def test_all_that_ask_at_one_time_get_one_page_of_each_format() -> None:
    writer = SlowWriter()
    pages = SharedPages(writer.write)
    asked = [pages.get(openmetrics) for openmetrics in [False, True] * 8]
    assert await asyncio.gather(*asked) == [b"1", b"2"] * 8 and writer.written == [False, True]


@virtual
async def test_a_page_is_never_older_than_a_second() -> None:
    writer = SlowWriter()
    pages = SharedPages(writer.write)
    assert [await pages.get(False), await pages.get(False)] == [b"1", b"1"]
    await asyncio.sleep(SHARED_SECONDS)
    assert await pages.get(False) == b"2"
    assert [await SharedPages(writer.write, 0.0).get(False) for _ in range(2)] == [b"3", b"4"]


@virtual
async def test_a_reader_that_leaves_and_a_page_that_fails_leave_the_others_their_page() -> None:
    writer = SlowWriter()
    pages = SharedPages(writer.write)
    first, second = asyncio.ensure_future(pages.get(False)), asyncio.ensure_future(pages.get(False))
    await asyncio.sleep(0.1)
    first.cancel()
    writer.at_once = 0
    assert await second == b"1" and writer.written == [False]


async def test_the_names_of_vllm_can_be_left_out(folder: Path) -> None:
    async with serving(folder, metrics_compat="none") as client:
        page = (await client.get("/metrics")).text
        assert "baton_build_info" in page and "gen_ai_server_" in page and "vllm" not in page
    with pytest.raises(ConfigError, match="metrics_compat: 'sglang' is not one of vllm, none"):
        GatewayConfig(metrics_compat="sglang")


async def test_without_metrics_there_is_no_page(folder: Path) -> None:
    async with serving(folder, metrics=False) as client:
        assert (await client.get("/metrics")).status_code == 404
        assert (await client.get("/health")).status_code == 503, "no worker is attached"


async def test_errors_over_http_are_counted_once(core: FakeCore, url: str) -> None:
    async with httpx2.AsyncClient(base_url=url, timeout=None) as client:
        await client.post("/v1/completions", json={"prompt": "x", "max_tokens": -1})
        await client.post("/v1/completions", json={"prompt": "x", "max_tokens": 3})
    assert core.errors == ["INVALID_REQUEST"]


async def test_errors_over_grpc_are_counted_once(core: FakeCore, stub: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError):
        await stub.Generate(pb.GenerateRequest())
    await stub.Generate(pb.GenerateRequest(text="x"))
    assert core.errors == ["INVALID_REQUEST"]
