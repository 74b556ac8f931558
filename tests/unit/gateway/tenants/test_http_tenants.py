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

from gateway.prompts.assets import Assets
from mesh.config.door_config import DoorConfig
from tests.harness.waiting import within
from tests.unit.gateway.conftest import FakeCore
from tests.unit.gateway.tenants.keys_files import (
    GuardedDoor,
    bearer,
    guarded_http,
    key_of,
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
        await within(20, lambda: caplog.records)
    (line,) = caplog.records
    assert line.__dict__["tenant"] == "alice" and " tenant alice ok" in line.getMessage()
    (record,) = door.traces.latest(5)
    assert door.traces.spans(record)[0].attributes["baton.tenant"] == "alice"
    assert key_of("alice") not in str(door.traces.spans(record)) + line.getMessage()
