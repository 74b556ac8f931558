"""A browser tab, a mesh of real processes, and a gateway with as many made-up workers as a test wants."""

import asyncio
import math
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, cast

import httpx2 as httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import BaseRoute

from gateway.attaching.served_models import ServedModel, ServedModels
from gateway.attaching.service import Gateway
from gateway.dialects.debug_pages import debug_routes
from gateway.http.server import serve_http
from gateway.observability.ui import Ui
from mesh.messages.jobs import Tier
from mesh.messages.reports import Hello, Load, PageMap, PrefixChange
from mesh.network.memory_network import MemoryNetwork
from tests.ui.browser import Tab, open_browser
from tests.unit.gateway.fake_mesh import RecordingSession

ROOT = Path(__file__).resolve().parents[2]
WORDS = "relay baton runner track page decode prefill hand off token story mesh worker lane river stone bird".split()


@pytest.fixture
def shots() -> Path:
    """The folder for screenshots."""
    folder = Path(os.environ.get("UI_SHOTS", ROOT / "build/ui"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
async def tab(tmp_path: Path) -> AsyncIterator[Tab]:
    async with open_browser(tmp_path / "profile") as browser:
        tab = await browser.new_tab()
        await tab.look(width=1440, height=1190)
        yield tab


class MadeUpMesh:
    """A gateway in this process; its workers exist only for its page."""

    def __init__(self, *models: str) -> None:
        served = ServedModels(ServedModel((name,)) for name in models or ("made-up",))
        self.gateway = Gateway(MemoryNetwork(Random(1)).host("gateway"), random=Random(1), model=served)
        self._made = 0

    def add(self, tier: Tier, *, pages: int = 200, name: str = "", model: str = "made-up") -> None:
        self._made += 1
        load = Load(free_pages=pages // 2, total_pages=pages, tokens_per_second=1000.0)
        prefix, address = PrefixChange(0, (), (), snapshot=True), f"10.0.0.{self._made}:7000"
        name = name or f"{tier.value}-{self._made}"
        hello = Hello(tier, self._made, address, "class", "print", model, "0", 32, 512, load, prefix, name=name)
        session = cast(Any, RecordingSession(name=name, heard_seconds=math.inf))
        worker = self.gateway.attaching.on_hello(session, hello)
        assert worker is not None, "its model is served"
        worker.page_map = PageMap(
            1, bytes((2, 1, 3, 4, 0)), (pages // 4, pages // 4, 6, 2, pages - 2 * (pages // 4) - 8)
        )

    def remove(self, name: str) -> None:
        self.gateway.attaching.on_session_end(next(worker for worker in self.gateway.workers if worker.name == name))

    @asynccontextmanager
    async def served(self, address: str = "127.0.0.1:0", also: list[BaseRoute] | None = None) -> AsyncIterator[str]:
        ui = Ui(self.gateway)
        routes = [*ui.routes(), *debug_routes(self.gateway.traces, time.time), *(also or [])]
        server = await serve_http(Starlette(routes=routes), address)
        try:
            yield server.address
        finally:
            ui.close()
            await server.close()


@pytest.fixture
def made_up() -> Callable[..., Awaitable[MadeUpMesh]]:
    async def make(*models: str) -> MadeUpMesh:
        return MadeUpMesh(*models)

    return make


@asynccontextmanager
async def traffic(http: str, clients: int, *, most_tokens: int = 120) -> AsyncIterator[None]:
    """Clients that ask again and again, each one request at a time."""

    async def ask(number: int) -> None:
        async with httpx.AsyncClient(timeout=120, trust_env=False) as client:
            for round in range(10_000):
                words = Random(1000 * number + round)
                text = " ".join(words.choices(WORDS, k=150 + 60 * ((number + round) % 5)))
                body = {
                    "prompt": text,
                    "max_tokens": most_tokens,
                    "stream": True,
                    "ignore_eos": True,
                    "temperature": 0.9,
                }
                async with client.stream(
                    "POST", f"http://{http}/v1/completions", json=body | {"model": "baton-tiny"}
                ) as answer:
                    assert answer.status_code == 200
                    async for _ in answer.aiter_raw():
                        pass

    tasks = [asyncio.ensure_future(ask(number)) for number in range(clients)]
    try:
        yield
        for task in tasks:
            assert not task.done(), task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
