"""The pages of `/debug/requests`: names by which a request is found, and questions that are refused."""

from collections.abc import AsyncIterator
from random import Random
from typing import Any

import httpx2
import pytest

from cli.errors import MeshError
from cli.why.explain import fetch
from gateway.dialects.api import HttpApi
from gateway.dialects.debug_pages import debug_routes
from gateway.http.server import serve_http
from gateway.prompts.assets import Assets
from gateway.tracing.traces import RecentTraces
from tests.unit.gateway.conftest import FakeCore


@pytest.fixture
async def http(core: FakeCore, assets: Assets) -> AsyncIterator[httpx2.AsyncClient]:
    traces = RecentTraces(random=Random(1))
    api = HttpApi(
        core, assets, random=Random(7), clock=lambda: 0.0, traces=traces, also=debug_routes(traces, lambda: 0.0)
    )
    server = await serve_http(api.app, "127.0.0.1:0")
    async with httpx2.AsyncClient(base_url=f"http://{server.address}", trust_env=False, timeout=None) as client:
        yield client
    await server.close()


async def ask(http: httpx2.AsyncClient, request_id: str = "", path: str = "completions") -> Any:
    messages = {"messages": [{"role": "user", "content": "hi"}]}
    bodies = {"chat/completions": messages, "messages": messages, "responses": {"input": "hi"}}
    body = bodies.get(path, {"prompt": "x"}) | {"max_output_tokens" if path == "responses" else "max_tokens": 2}
    answer = await http.post(f"/v1/{path}", json=body, headers={"x-request-id": request_id})
    assert answer.status_code == 200
    return answer


@pytest.mark.parametrize("limit", ["9" * 6000, "%D9%A3", "0", "513", "99999", "1.0", "+1", "", "x"])
async def test_a_limit_is_one_to_four_ascii_digits(http: httpx2.AsyncClient, limit: str) -> None:
    answer = await http.get(f"/debug/requests?limit={limit}")
    error = answer.json()["error"]
    assert answer.status_code == 400 and set(error) == {"message", "type", "param", "code", "reason"}
    assert "whole number from 1 to 512" in error["message"] and error["param"] == "limit"


@pytest.mark.parametrize("limit", ["1", "0003", "512"])
async def test_a_good_limit_is_obeyed(http: httpx2.AsyncClient, limit: str) -> None:
    for _ in range(4):
        await ask(http)
    answer = await http.get(f"/debug/requests?limit={limit}")
    assert len(answer.json()["requests"]) == min(4, int(limit))


@pytest.mark.parametrize("path", ["completions", "chat/completions", "responses", "messages"])
async def test_a_request_is_found_by_its_id_the_id_of_its_answer_and_its_trace(
    http: httpx2.AsyncClient, path: str
) -> None:
    await ask(http, "another")
    answer = await ask(http, "mine/1?", path)
    assert answer.json()["id"] in tuple(f"{kind}mine/1?" for kind in ("cmpl-", "chatcmpl-", "resp_", "msg_"))
    found = (await http.get("/debug/requests/mine%2F1%3F")).json()
    assert found["request_id"] == "mine/1?" and found["same_id"] == []
    for name in (answer.json()["id"].replace("?", "%3F"), found["trace_id"], found["trace_id"].upper()):
        assert (await http.get(f"/debug/requests/{name}")).json()["trace_id"] == found["trace_id"]
    for wrong in ("cmpl-", "cmpl-mine", "f" * 32, "mine"):
        assert (await http.get(f"/debug/requests/{wrong}")).status_code == 404


async def test_a_request_whose_own_id_looks_like_an_answers_is_found_first(http: httpx2.AsyncClient) -> None:
    await ask(http, "cmpl-a")
    await ask(http, "a")
    assert (await http.get("/debug/requests/cmpl-a")).json()["request_id"] == "cmpl-a"


async def test_requests_that_share_an_id_are_told_apart_by_their_traces(http: httpx2.AsyncClient) -> None:
    for name in ("same", "same", "other"):
        await ask(http, name)
    newest = (await http.get("/debug/requests/same")).json()
    assert len(newest["same_id"]) == 2 and newest["trace_id"] == newest["same_id"][0]
    older = (await http.get(f"/debug/requests/{newest['same_id'][1]}")).json()
    assert older["trace_id"] != newest["trace_id"] and older["same_id"] == newest["same_id"]
    picked = await http.get("/debug/requests/same", params={"trace_id": older["trace_id"]})
    assert picked.json()["trace_id"] == older["trace_id"]
    assert (await http.get("/debug/requests/same", params={"trace_id": "0" * 32})).status_code == 404


@pytest.mark.parametrize("name", [".", ".."])
async def test_ids_that_no_url_can_hold_are_refused_in_the_body_and_passed_over_in_the_header(
    http: httpx2.AsyncClient, name: str
) -> None:
    assert (await ask(http, name)).headers["x-request-id"] != name
    answer = await http.post("/v1/completions", json={"prompt": "x", "request_id": name})
    assert answer.status_code == 400 and "not . or .." in answer.json()["error"]["message"]
    assert (await ask(http, "...")).headers["x-request-id"] == "..."


async def test_requests_that_a_front_door_refuses_are_told_from_those_that_fail_later(
    http: httpx2.AsyncClient, core: FakeCore
) -> None:
    for _ in range(3):
        assert (await http.post("/v1/completions", json={"prompt": "x", "max_tokens": -1})).status_code == 400
    assert core.refused == 3 == len(core.errors)


async def test_the_command_line_shows_why_there_is_no_such_request(http: httpx2.AsyncClient) -> None:
    with pytest.raises(MeshError, match="no request 'gone'") as raised:
        await fetch(str(http.base_url), "gone")
    assert "{" not in str(raised.value)
