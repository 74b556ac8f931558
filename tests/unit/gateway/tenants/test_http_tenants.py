"""Tenants over HTTP: who gets in, what a request may run, and what is told about it."""

import asyncio
import base64
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from gateway.text.assets import Assets
from mesh.door_config import DoorConfig
from mesh.errors import Unavailable
from tests.unit.gateway.conftest import FakeCore
from tests.unit.gateway.emitting_core import EmittingCore
from tests.unit.gateway.fake_mesh import mesh
from tests.unit.gateway.tenants.keys_files import (
    GuardedDoor,
    bearer,
    begun,
    guarded_http,
    key_of,
    soon,
    write_keys,
)

BODY = {"prompt": "x", "max_tokens": 4}


@pytest.fixture
async def door(core: Any, assets: Assets, tmp_path: Path) -> AsyncIterator[GuardedDoor]:
    async with guarded_http(core, assets, write_keys(tmp_path / "keys", alice="", bob="", ops="operator")) as door:
        yield door


GUARDED = [
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/embeddings"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/tiny"),
    ("GET", "/load"),
    ("GET", "/"),
    ("GET", "/metrics"),
    ("GET", "/ui"),
    ("GET", "/debug/requests"),
    ("POST", "/nothing"),
    ("DELETE", "/v1/completions"),
    ("GET", "/healthy"),
    ("GET", "/health/../v1/models"),
    ("POST", "//v1/completions"),
    ("GET", "/V1/models"),
]


async def test_everything_but_the_open_paths_needs_a_key(door: GuardedDoor, core: FakeCore) -> None:
    for method, path in GUARDED:
        answer = await door.http.request(method, path, json=BODY)
        error = answer.json()["error"]
        assert answer.status_code == 401 and set(error) == {"message", "type", "param", "code", "reason"}, path
        assert (error["code"], error["type"]) == ("invalid_api_key", "authentication_error")
        assert answer.headers["x-error-reason"] == "UNAUTHENTICATED" and answer.headers["x-should-retry"] == "false"
        scheme = "Basic" if path.startswith(("/ui", "/debug", "/metrics")) else "Bearer"
        assert answer.headers["www-authenticate"].startswith(scheme) and answer.headers["x-request-id"]
    assert not core.streams and core.errors == ["UNAUTHENTICATED"] * len(GUARDED) and core.refused == len(GUARDED)


async def test_health_and_version_are_open(door: GuardedDoor) -> None:
    for path in ("/health", "/health/", "/v1/health", "/version"):
        assert (await door.http.get(path)).status_code == 200
        assert (await door.http.get(path, headers=bearer("nobody"))).status_code == 200


async def test_open_paths_are_a_setting(assets: Assets, tmp_path: Path) -> None:
    core = FakeCore(limits=DoorConfig(keys_open_paths=("/load",)))
    async with guarded_http(core, assets, write_keys(tmp_path / "keys", alice="")) as door:
        assert (await door.http.get("/load")).status_code == 200
        assert (await door.http.get("/health")).status_code == 401


GOOD: list[dict[str, str]] = [
    {"authorization": f"Bearer {key_of('alice')}"},
    {"authorization": f"bearer   {key_of('alice')}"},
    {"x-api-key": key_of("alice")},
    {"x-api-key": key_of("alice"), "authorization": f"Bearer {key_of('alice')}"},
]


async def test_a_key_comes_as_a_bearer_or_as_x_api_key(door: GuardedDoor) -> None:
    for headers in GOOD:
        assert (await door.http.post("/v1/completions", json=BODY, headers=headers)).status_code == 200, headers


WRONG: list[list[tuple[str, str]]] = [
    [("authorization", f"Bearer {key_of('alice')}"), ("authorization", f"Bearer {key_of('bob')}")],
    [("authorization", f"Bearer {key_of('alice')}"), ("Authorization", f"Bearer {key_of('alice')}")],
    [("x-api-key", key_of("alice")), ("x-api-key", key_of("alice"))],
    [("authorization", f"Bearer {key_of('alice')}"), ("x-api-key", key_of("bob"))],
    [("authorization", f"Bearer {key_of('alice')}, Bearer {key_of('bob')}")],
    [("authorization", f"Bearer {key_of('alice')} {key_of('bob')}")],
    [("authorization", key_of("alice"))],
    [("authorization", f"Basic {base64.b64encode(b'x:' + key_of('alice').encode()).decode()}")],
    [("authorization", "Bearer")],
    [("authorization", "")],
    [("x-api-key", "")],
    [("x-api-key", key_of("alice")[:-1])],
    [("x-api-key", key_of("alice") + "x")],
    [("x-api-key", "k" * 5000)],
    [("api-key", key_of("alice"))],
    [("x-forwarded-authorization", f"Bearer {key_of('alice')}")],
    [("authorization", f"Bearer {key_of('alice').upper()}")],
]


async def test_several_wrong_or_misplaced_keys_are_refused(
    door: GuardedDoor, core: FakeCore, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        for headers in WRONG:
            answer = await door.http.post("/v1/completions", json=BODY, headers=httpx2.Headers(headers))
            assert answer.status_code == 401 and not core.streams, headers
            assert key_of("alice") not in answer.text and key_of("bob") not in answer.text
    assert key_of("alice") not in "\n".join(r.getMessage() for r in caplog.records if r.name.startswith("baton"))


async def test_operations_are_for_operators_also_from_a_browser(door: GuardedDoor) -> None:
    basic = base64.b64encode(f"me:{key_of('ops')}".encode()).decode()
    for path in ("/ui/state", "/debug/requests", "/metrics"):
        refused = await door.http.get(path, headers=bearer("alice"))
        assert (refused.status_code, refused.json()["error"]["reason"]) == (403, "FORBIDDEN")
        for headers in (bearer("ops"), {"authorization": f"Basic {basic}"}):
            assert (await door.http.get(path, headers=headers)).status_code == 404, "behind the guard is no such page"
        assert (await door.http.get(path, headers={"authorization": "Basic ?"})).status_code == 401


async def test_the_body_of_a_refused_request_is_never_read(door: GuardedDoor, core: FakeCore) -> None:
    host, _, port = door.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 30000000\r\n\r\n{")
    async with asyncio.timeout(5):
        assert b" 401 " in await reader.readuntil(b"\r\n")
    writer.close()


async def test_tenants_have_salts_of_their_own_whatever_their_clients_send(door: GuardedDoor, core: FakeCore) -> None:
    for name in ("alice", "bob", "alice"):
        await door.complete(name)
        await door.complete(name, cache_salt="s")
        await door.http.post(
            "/v1/chat/completions", headers=bearer(name), json={"messages": [{"role": "user", "content": "x"}]}
        )
    plain, salted = ([stream.choice.salt for stream in core.streams[first::3]] for first in (0, 1))
    chat = [stream.choice.salt for stream in core.streams[2::3]]
    assert plain == chat and plain[0] == plain[2] and salted[0] == salted[2]
    assert len({plain[0], plain[1], salted[0], salted[1]}) == 4
    await door.http.post("/v1/embeddings", headers=bearer("alice"), json={"input": "x"})
    await door.complete("alice", prompt_logprobs=1)
    assert {each.choice.salt for each in core.examinations} <= {plain[0]}


async def test_priorities_follow_the_row(core: FakeCore, assets: Assets, tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "keys", batch="priority=300 priorities=-20..300", alice="")
    async with guarded_http(core, assets, keys) as door:
        for priority in (0, -20, 300):
            assert (await door.complete("batch", priority=priority)).status_code == 200
        assert (await door.complete("alice", priority=600)).status_code == 200
        for name, priority in (("batch", -21), ("alice", -1)):
            error = (await door.complete(name, priority=priority)).json()["error"]
            assert (error["code"], error["param"]) == (400, "priority"), error
        assert [stream.choice.priority for stream in core.streams] == [300, 280, 600, 600]


async def test_a_reload_lets_in_and_locks_out(door: GuardedDoor) -> None:
    async with openai.AsyncOpenAI(
        base_url=f"http://{door.address}/v1", api_key=key_of("carol"), max_retries=0
    ) as carol:
        with pytest.raises(openai.AuthenticationError):
            await carol.models.list()
        await door.reload(carol="", bob="")
        assert [model.id for model in (await carol.models.list()).data] == ["tiny"]
        assert (await door.complete("alice")).status_code == 401
        assert (await door.complete("bob")).status_code == 200


async def test_the_tenant_stands_in_log_trace_and_page(door: GuardedDoor, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "baton.request"):
        await door.complete("alice")
        await soon(lambda: caplog.records)
    (line,) = caplog.records
    assert line.__dict__["tenant"] == "alice" and " tenant alice ok" in line.getMessage()
    (record,) = door.traces.latest(5)
    assert door.traces.spans(record)[0].attributes["baton.tenant"] == "alice"
    assert key_of("alice") not in str(door.traces.spans(record)) + line.getMessage()


# ---- limits, over the product's sequencer


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
    await soon(lambda: door.tenants._uses["alice"].generated_tokens == 50)
    first.cancel()
    await soon(lambda: not core.running)
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
    await soon(lambda: door.tenants._uses["bob"].choices == 2)
    more = asyncio.ensure_future(door.complete("bob", n=2))
    await begun(core, 6)
    for each in (*running, more):
        each.cancel()
    await soon(lambda: door.tenants._uses["bob"].choices == 0 and not core.running)
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
    await soon(lambda: "bob" in door.tenants._uses and door.tenants._uses["bob"].choices == 4)
    assert (await door.complete("bob")).status_code == 429
    for writer in writers:
        writer.close()
    await soon(lambda: door.tenants._uses["bob"].choices == 0)


async def test_a_slow_reader_pays_for_what_was_generated(busy: tuple[GuardedDoor, EmittingCore]) -> None:
    door, core = busy
    body = {"prompt": "x", "max_tokens": 100, "stream": True}

    async def generate() -> None:
        await begun(core, 1)
        core.emit(60)

    generating = asyncio.ensure_future(generate())
    async with door.http.stream("POST", "/v1/completions", headers=bearer("alice"), json=body):
        await generating
        await soon(lambda: door.tenants._uses["alice"].generated_tokens == 60)
        assert (await door.complete("alice")).status_code == 429, "while it reads slowly, and afterwards"
    await soon(lambda: door.tenants._uses["alice"].choices == 0)
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
    await soon(lambda: use.choices == 0)


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
