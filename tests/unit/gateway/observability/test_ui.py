"""The routes of `/ui` over a real HTTP server: files, the snapshot, the stream, and who may read them."""

import asyncio
import json
import math
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import httpx2 as httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from gateway.attaching.service import Gateway
from gateway.core.interface import ChoiceRequest
from gateway.http.server import serve_http
from gateway.observability.broadcast import MOST_OF_PEER
from gateway.observability.page_files import POLICY
from gateway.observability.ui import READ_SECONDS, Ui
from gateway.observability.ui_state import state_of
from mesh.messages.jobs import Sampling, Tier
from mesh.messages.orders import Watch
from mesh.messages.reports import Hello, Load, PageMap, PrefixChange
from mesh.network.memory_network import MemoryNetwork
from tests.sim.loop import virtual

SECRET = 987_654  # a token id of a prompt that no watcher may see


def add_worker(gateway: Gateway, tier: Tier, incarnation: int) -> list[Any]:
    """A worker that is attached, and the messages that it gets."""
    sent = list[Any]()
    load = Load(free_pages=64, total_pages=64, tokens_per_second=100.0)
    hello = Hello(
        tier,
        incarnation,
        f"host:{incarnation}",
        "class",
        "print",
        "tiny",
        "0",
        32,
        512,
        load,
        PrefixChange(0, (), (), True),
    )
    name = f"{tier.value} {incarnation}"
    session = SimpleNamespace(send=sent.append, name=name, close=lambda: None, heard_seconds=math.inf, expired=False)
    gateway.attaching.on_hello(cast(Any, session), hello)
    return sent


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    made = Gateway(MemoryNetwork(Random(1)).host("gateway"), random=Random(1), model="tiny")
    yield made
    await made.aclose()


@pytest.fixture
async def url(gateway: Gateway) -> AsyncIterator[str]:
    ui = Ui(gateway)
    server = await serve_http(Starlette(routes=ui.routes()), "127.0.0.1:0")
    yield f"http://{server.address}"
    ui.close()
    await server.close()


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
        yield client


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/ui", "text/html; charset=utf-8"),
        ("/ui/app.js", "text/javascript; charset=utf-8"),
        ("/ui/style.css", "text/css; charset=utf-8"),
        ("/ui/icon.svg", "image/svg+xml"),
    ],
)
async def test_files_come_with_their_kind_the_policy_and_an_etag(
    url: str, http: httpx.AsyncClient, path: str, kind: str
) -> None:
    answer = await http.get(url + path)
    assert (answer.status_code, answer.headers["content-type"]) == (200, kind)
    assert answer.headers["content-security-policy"] == POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    again = await http.get(url + path, headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    other = await http.get(url + path, headers={"if-none-match": '"old"'})
    assert other.status_code == 200


@pytest.mark.parametrize("name", ["gone.js", "..%2fui.py", "%2e%2e/ui.py", "__init__.py"])
async def test_only_files_of_the_page_are_served(url: str, http: httpx.AsyncClient, name: str) -> None:
    assert (await http.get(f"{url}/ui/{name}")).status_code == 404


async def test_the_snapshot_names_workers_and_requests_and_no_prompt(
    gateway: Gateway, url: str, http: httpx.AsyncClient
) -> None:
    add_worker(gateway, Tier.PREFILL, 1)
    add_worker(gateway, Tier.DECODE, 2)
    gateway.submit(ChoiceRequest("mine", "tiny", (SECRET,) * 40, (), Sampling(max_tokens=5)))
    gone = gateway.submit(ChoiceRequest("gone", "tiny", (SECRET,) * 40, (), Sampling(max_tokens=5)))
    gone.cancel()
    text = (await http.get(f"{url}/ui/state")).text
    state = json.loads(text)
    assert str(SECRET) not in text
    assert [(worker["tier"], worker["pages"]) for worker in state["workers"]] == [("prefill", 64), ("decode", 64)]
    (running,) = state["requests"]
    assert (running["request_id"], running["phase"], running["prompt_tokens"]) == ("mine", "prefill", 40)
    assert running["prefill"] == state["workers"][0]["id"] and running["decode"] == state["workers"][1]["id"]
    (ended,) = state["ended"]
    assert (ended["request_id"], ended["status"], ended["path"]) == ("gone", "cancelled", "remote")
    assert state["totals"]["statuses"] == {"ok": 0, "error": 0, "cancelled": 1} and state["totals"]["refused"] == 0
    assert state["phases"]["prefill"] == 1 and state["healthy"] is True


async def test_an_idle_mesh_has_an_equal_snapshot_however_late_it_is_taken(gateway: Gateway) -> None:
    add_worker(gateway, Tier.DECODE, 2)
    first = state_of(gateway)
    await asyncio.sleep(0.02)
    assert state_of(gateway) == first


async def test_a_mesh_without_workers_says_so(url: str, http: httpx.AsyncClient) -> None:
    state = (await http.get(f"{url}/ui/state")).json()
    assert state["workers"] == [] and state["healthy"] is False


@pytest.mark.parametrize("path", ["/ui/state", "/ui/events"])
async def test_pages_of_other_sites_get_no_data(url: str, http: httpx.AsyncClient, path: str) -> None:
    for site in ("cross-site", "same-site"):
        answer = await http.get(url + path, headers={"sec-fetch-site": site})
        assert answer.status_code == 403 and "error" in answer.json()


async def read_events(lines: AsyncIterator[str], count: int) -> list[tuple[str, Any]]:
    found, topic = list[tuple[str, Any]](), ""
    async for line in lines:
        if line.startswith("event: "):
            topic = line[7:]
        elif line.startswith("data: "):
            found.append((topic, json.loads(line[6:])))
            if len(found) == count:
                break
    return found


async def test_the_stream_sends_the_state_then_what_changes_and_asks_workers_for_maps(
    gateway: Gateway, url: str, http: httpx.AsyncClient
) -> None:
    sent = add_worker(gateway, Tier.DECODE, 2)
    await asyncio.sleep(0.05)
    assert sent == [], "a mesh that nobody watches pays nothing"
    async with http.stream("GET", f"{url}/ui/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = aiter(answer.aiter_lines())
        assert {topic for topic, _ in await read_events(lines, 2)} == {"state", "maps"}
        assert sent == [Watch(seconds=6)]
        (worker,) = gateway.workers
        gateway.attaching.on_report(worker, PageMap(1, bytes((0, 2)), (60, 4)))
        ((topic, maps),) = await read_events(lines, 1)
        assert (topic, maps) == ("maps", {f"{2:016x}": "1:f60u4"})
        add_worker(gateway, Tier.PREFILL, 3)
        ((topic, state),) = await read_events(lines, 1)
        assert topic == "state" and len(state["workers"]) == 2


async def test_one_page_too_many_takes_the_place_of_the_oldest_one_which_hears_why(
    url: str, http: httpx.AsyncClient
) -> None:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(trust_env=False, timeout=20, limits=limits) as many, AsyncExitStack() as stack:
        answers = [await stack.enter_async_context(many.stream("GET", f"{url}/ui/events")) for _ in range(MOST_OF_PEER)]
        async with http.stream("GET", f"{url}/ui/events") as newest:
            assert newest.status_code == 200
            assert {topic for topic, _ in await read_events(aiter(newest.aiter_lines()), 2)} == {"state", "maps"}
            last = [line async for line in answers[0].aiter_lines() if line][-2:]
            assert last[0] == "event: end" and "a newer page took its place" in last[1]


@pytest.mark.parametrize("reads", [False, True])
@virtual
async def test_a_page_that_takes_nothing_for_ten_seconds_is_dropped(reads: bool) -> None:
    ui = Ui(Gateway(MemoryNetwork(Random(1)).host("gateway"), random=Random(1), model="tiny"))
    (events,) = (route.app for route in ui.routes() if isinstance(route, Route) and route.path == "/ui/events")
    scope = {"type": "http", "method": "GET", "path": "/ui/events", "headers": [], "client": ("10.0.0.1", 1)}
    never = asyncio.Event()

    async def receive() -> dict[str, str]:
        await never.wait()
        return {}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.body" and not reads:
            await never.wait()

    task = asyncio.ensure_future(events(scope, receive, send))  # type: ignore[arg-type]
    await asyncio.sleep(READ_SECONDS - 1)
    assert not task.done()
    await asyncio.sleep(3 * READ_SECONDS)
    assert task.done() is not reads
    ui.close()
    await task


async def test_closing_ends_open_streams_at_once(gateway: Gateway, http: httpx.AsyncClient) -> None:
    ui = Ui(gateway)
    server = await serve_http(Starlette(routes=ui.routes()), "127.0.0.1:0")
    async with http.stream("GET", f"http://{server.address}/ui/events") as answer:
        lines = aiter(answer.aiter_lines())
        await read_events(lines, 2)
        ui.close()
        assert [line async for line in lines if line.startswith("data")] == []
    await server.close()
