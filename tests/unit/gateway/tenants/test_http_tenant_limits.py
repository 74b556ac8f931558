"""A tenant's limits over HTTP and the product's sequencer: tokens and choices count, and 429 says when to return."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.prompts.assets import Assets
from mesh.errors import Unavailable
from tests.harness.waiting import within
from tests.unit.gateway.conftest import FakeCore
from tests.unit.gateway.emitting_core import EmittingCore
from tests.unit.gateway.fake_mesh import mesh
from tests.unit.gateway.tenants.keys_files import (
    GuardedDoor,
    bearer,
    begun,
    guarded_http,
    key_of,
    write_keys,
)


@pytest.fixture
async def busy(assets: Assets, tmp_path: Path) -> AsyncIterator[tuple[GuardedDoor, EmittingCore]]:
    core = EmittingCore(mesh=mesh(model="tiny"))
    rows = {"alice": "tokens_per_minute=600 burst_tokens=40", "bob": "concurrent=4"}
    async with guarded_http(core, assets, write_keys(tmp_path / "keys", **rows)) as door:
        yield door, core


async def test_spent_tokens_give_429_with_the_buckets_time(busy: tuple[GuardedDoor, EmittingCore]) -> None:
    door, core = busy
    first = asyncio.ensure_future(door.complete("alice", prompt="x" * 20, max_tokens=50))
    await begun(core, 1)
    core.emit(50)
    assert core.running, "the last token came without an end"
    await within(20, lambda: door.tenants._uses["alice"].generated_tokens == 50)
    first.cancel()
    await within(20, lambda: not core.running)
    refused = await door.complete("alice")
    error = refused.json()["error"]
    assert refused.status_code == 429 and (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
    assert refused.headers["retry-after-ms"] == "3100" and refused.headers["retry-after"] == "4"
    assert refused.headers["x-should-retry"] == "true" and refused.headers["x-baton-tokens-spent"] == "0"
    assert error["details"] == {"tenant": "alice", "limit": "tokens_per_minute", "tokens_spent": "0"}
    assert len(core.requests) == 1 and (await door.http.get("/v1/models", headers=bearer("alice"))).status_code == 200
    assert core.errors[-1] == "RATE_LIMITED"
    door.clock.now += 3.2
    again = asyncio.ensure_future(door.complete("alice"))
    await begun(core, 2)
    again.cancel()


@pytest.mark.parametrize(
    "fields", [{"n": 5}, {"best_of": 5, "n": 1}, {"prompt": ["a", "b", "c", "d", "e"]}, {"prompt": ["a", "b"], "n": 3}]
)
async def test_choices_of_all_kinds_count(busy: tuple[GuardedDoor, EmittingCore], fields: dict[str, Any]) -> None:
    door, core = busy
    refused = await door.complete("bob", **fields)
    assert refused.status_code == 429 and "ask for fewer" in refused.text
    assert refused.headers["x-should-retry"] == "false" and "retry-after" not in refused.headers
    assert not core.requests and door.tenants._uses["bob"].choices == 0


async def test_running_choices_are_counted_until_the_last_byte(busy: tuple[GuardedDoor, EmittingCore]) -> None:
    door, core = busy
    running = [asyncio.ensure_future(door.complete("bob", n=2, max_tokens=3)) for _ in range(2)]
    await begun(core, 4)
    for _ in range(3):
        refused = await door.complete("bob")
        assert refused.status_code == 429 and refused.headers["retry-after"] == "1"
    assert (await door.complete("alice", max_tokens=0)).status_code == 200, "others are not held up"
    running.pop().cancel()
    await within(20, lambda: door.tenants._uses["bob"].choices == 2)
    more = asyncio.ensure_future(door.complete("bob", n=2))
    await begun(core, 6)
    for each in (*running, more):
        each.cancel()
    await within(20, lambda: door.tenants._uses["bob"].choices == 0 and not core.running)
    assert door.tenants._uses["bob"].aside == 0


async def test_a_half_sent_body_takes_a_place(busy: tuple[GuardedDoor, EmittingCore]) -> None:
    door, _ = busy
    host, _, port = door.address.rpartition(":")
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-api-key: {key_of('bob')}\r\ncontent-length: 99\r\n\r\n"
    writers = []
    for _ in range(4):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(head.encode() + b"{")
        writers.append(writer)
    await within(20, lambda: "bob" in door.tenants._uses and door.tenants._uses["bob"].choices == 4)
    assert (await door.complete("bob")).status_code == 429
    for writer in writers:
        writer.close()
    await within(20, lambda: door.tenants._uses["bob"].choices == 0)


async def test_a_slow_reader_pays_for_what_was_generated(busy: tuple[GuardedDoor, EmittingCore]) -> None:
    door, core = busy
    body = {"prompt": "x", "max_tokens": 100, "stream": True}

    async def generate() -> None:
        await begun(core, 1)
        core.emit(60)

    generating = asyncio.ensure_future(generate())
    async with door.http.stream("POST", "/v1/completions", headers=bearer("alice"), json=body):
        await generating
        await within(20, lambda: door.tenants._uses["alice"].generated_tokens == 60)
        assert (await door.complete("alice")).status_code == 429, "while it reads slowly, and afterwards"
    await within(20, lambda: door.tenants._uses["alice"].choices == 0)
    assert (await door.complete("alice")).status_code == 429


async def test_a_prompt_is_paid_once_for_all_its_choices_and_a_rejected_request_pays_nothing(
    busy: tuple[GuardedDoor, EmittingCore],
) -> None:
    door, core = busy
    for wrong in ({"temperature": -1}, {"model": "no"}, {"prompt": ["a" * 20, "b" * 20, ""]}):
        assert (await door.complete("alice", **wrong)).status_code in (400, 404)
    use = door.tenants._uses["alice"]
    assert (use.prompt_tokens, use.aside, use.choices, use.left(door.clock())) == (0, 0, 0, 40.0)
    running = asyncio.ensure_future(door.complete("alice", prompt=["abc", "de"], n=3))
    await begun(core, 6)
    assert use.prompt_tokens == 5 and use.choices == 6
    running.cancel()
    await within(20, lambda: use.choices == 0)


async def test_a_request_that_the_core_refuses_costs_nothing(assets: Assets, tmp_path: Path) -> None:
    core = FakeCore(refuse=Unavailable("full"))
    async with guarded_http(core, assets, write_keys(tmp_path / "keys", alice="tokens_per_minute=60")) as door:
        assert (await door.complete("alice")).status_code == 503
        use = door.tenants._uses["alice"]
        assert (use.prompt_tokens, use.aside, use.choices) == (0, 0, 0)


async def test_answers_say_what_is_left(busy: tuple[GuardedDoor, EmittingCore]) -> None:
    door, _ = busy
    answer = await door.complete("alice", max_tokens=0)
    assert answer.headers["x-ratelimit-limit-tokens"] == "600"
    assert answer.headers["x-ratelimit-remaining-tokens"] == "40"
    assert "x-ratelimit-limit-tokens" not in (await door.complete("bob", max_tokens=0)).headers
