"""A gateway with files and batches, and the OpenAI SDK as its client."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random
from typing import Any

import httpx2
import openai
import pytest

from gateway.batches.bounds import FileBounds
from gateway.batches.store import BatchStore
from gateway.dialects.api import HttpApi
from gateway.prompts.assets import Assets
from tests.harness.socketless import SocketlessHttp
from tests.harness.wall_clock import WallClock
from tests.unit.gateway.conftest import FakeCore

WALL = 1_700_000_000.0


@pytest.fixture
def wall() -> WallClock:
    return WallClock(WALL)


@pytest.fixture
async def new_api(
    core: FakeCore, assets: Assets, tmp_path: Path, wall: WallClock
) -> AsyncIterator[Callable[[], tuple[HttpApi, BatchStore]]]:
    stores = list[BatchStore]()

    def make() -> tuple[HttpApi, BatchStore]:
        store = BatchStore(tmp_path / "files", FileBounds(2**20), days=1.0, clock=wall, random=Random(len(stores)))
        stores.append(store)
        return HttpApi(core, assets, random=Random(len(stores)), clock=wall, batches=store), store

    yield make
    for store in stores:
        await store.aclose()


@pytest.fixture
def api(new_api: Callable[[], tuple[HttpApi, BatchStore]]) -> HttpApi:
    return new_api()[0]


@pytest.fixture
async def http(api: HttpApi) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(transport=SocketlessHttp(api.app), base_url="http://127.0.0.1/v1") as client:
        yield client


@pytest.fixture
async def client(http: httpx2.AsyncClient) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url="http://127.0.0.1/v1",
        api_key="none",
        max_retries=0,
        _strict_response_validation=True,
        http_client=http,  # type: ignore[arg-type]
    ) as made:
        yield made


@pytest.fixture
async def working(api: HttpApi) -> AsyncIterator[None]:
    assert api.batch_work is not None
    task = asyncio.create_task(api.batch_work.run())
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def lines(count: int, **changes: Any) -> bytes:
    entries = [
        {"custom_id": f"r-{number}", "method": "POST", "url": "/v1/completions", "body": {"prompt": f"p{number}"}}
        for number in range(count)
    ]
    return b"".join(json.dumps(each | changes).encode() + b"\n" for each in entries)


async def upload(client: openai.AsyncOpenAI, content: bytes, purpose: Any = "batch") -> Any:
    return await client.files.create(file=("in.jsonl", content), purpose=purpose)


async def begin(client: openai.AsyncOpenAI, content: bytes, **changes: Any) -> Any:
    file = await upload(client, content)
    fields: Any = {"endpoint": "/v1/completions", "completion_window": "24h", "input_file_id": file.id} | changes
    return await client.batches.create(**fields)


async def until(client: openai.AsyncOpenAI, id: str, *statuses: str) -> Any:
    async with asyncio.timeout(20):
        while (found := await client.batches.retrieve(id)).status not in statuses:
            await asyncio.sleep(0.02)
    return found


async def content(client: openai.AsyncOpenAI, id: str) -> list[Any]:
    return [json.loads(line) for line in (await client.files.content(id)).text.splitlines()]
