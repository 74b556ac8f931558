"""HTTP around an answer: models, health, request ids, clients that go away, failures in and before a stream."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2 as httpx
import openai
import pytest

from mesh.errors import Unavailable
from tests.harness.waiting import within


async def test_models_are_listed_and_named(client: openai.AsyncOpenAI) -> None:
    models = await client.models.list()
    assert [model.id for model in models.data] == ["tiny"]
    assert (await client.models.retrieve("tiny")).to_dict()["max_model_len"] == 512
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("other")


async def test_health_follows_the_core(url: str, core: Any) -> None:
    async with httpx.AsyncClient(timeout=None) as http:
        assert (await http.get(f"{url}/health")).status_code == 200
        core.up = False
        assert (await http.get(f"{url}/health")).status_code == 503


async def test_the_request_id_comes_back_and_reaches_the_core(url: str, core: Any) -> None:
    body = {"model": "tiny", "prompt": "x"}
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with httpx.AsyncClient(timeout=None) as http:
        for stream in (False, True):
            answer = await http.post(
                f"{url}/v1/completions",
                json=body | {"stream": stream},
                headers={"x-request-id": "mine-1", "traceparent": parent},
            )
            assert answer.headers["x-request-id"] == "mine-1"
        drawn = await http.post(f"{url}/v1/completions", json=body)
        refused = await http.post(f"{url}/v1/completions", json={}, headers={"x-request-id": "mine-2"})
    assert core.streams[0].choice.request_id == "mine-1"
    trace = core.streams[0].choice.trace
    assert (f"{trace.context.trace_id:032x}", f"{trace.parent_id:016x}") == (parent[3:35], parent[36:52])
    assert drawn.headers["x-request-id"] == core.streams[2].choice.request_id
    assert refused.headers["x-request-id"] == "mine-2"


@asynccontextmanager
async def streaming(url: str, body: dict[str, Any]) -> AsyncIterator[AsyncIterator[str]]:
    async with (
        httpx.AsyncClient(timeout=None) as http,
        http.stream("POST", f"{url}/v1/completions", json=body) as answer,
    ):
        yield answer.aiter_lines()


async def test_a_client_that_goes_away_cancels_all_its_choices(url: str, core: Any) -> None:
    core.ends = False
    async with streaming(url, {"model": "tiny", "prompt": "x", "stream": True, "n": 3}) as lines:
        async for line in lines:
            if line:
                break
    await within(20, lambda: len(core.streams) == 3 and all(stream.cancelled for stream in core.streams))


async def test_a_client_that_goes_away_cancels_an_answer_that_is_not_streamed(url: str, core: Any) -> None:
    core.ends = False
    async with httpx.AsyncClient(timeout=None) as http:
        post = asyncio.ensure_future(http.post(f"{url}/v1/completions", json={"model": "tiny", "prompt": ["x", "y"]}))
        await within(20, lambda: len(core.streams) == 2)
        post.cancel()
        await asyncio.gather(post, return_exceptions=True)
    await within(20, lambda: all(stream.cancelled for stream in core.streams))


async def test_a_failure_before_the_first_token_is_an_ordinary_error(url: str, core: Any) -> None:
    core.fail_at = {0: Unavailable("no worker", retry_after_seconds=2.5)}
    for stream in (False, True):
        async with httpx.AsyncClient(timeout=None) as http:
            answer = await http.post(
                f"{url}/v1/completions", json={"model": "tiny", "prompt": "x", "stream": stream, "n": 2}
            )
        assert answer.status_code == 503
        assert answer.json()["error"]["message"] == "no worker"
        assert answer.headers["retry-after-ms"] == "2500"
        assert answer.headers["x-should-retry"] == "true"


async def test_a_failure_in_the_middle_of_a_stream_is_an_event_and_the_stream_ends(url: str, core: Any) -> None:
    core.fail_at = {3: Unavailable("no worker")}
    async with streaming(url, {"model": "tiny", "prompt": "x", "stream": True}) as lines:
        data = [line.removeprefix("data: ") async for line in lines if line]
    assert data[-1] == "[DONE]"
    assert json.loads(data[-2])["error"]["reason"] == "UNAVAILABLE"
    assert "".join(json.loads(item)["choices"][0]["text"] for item in data[:-2]) == "hel"


async def test_completions_send_no_empty_first_chunk(url: str, core: Any) -> None:
    async with streaming(url, {"model": "tiny", "prompt": "x", "stream": True}) as lines:
        data = [line.removeprefix("data: ") async for line in lines if line]
    assert json.loads(data[0])["choices"][0]["text"] == "h"


async def test_a_defect_shows_only_the_request_id(url: str, core: Any, caplog: pytest.LogCaptureFixture) -> None:
    core.refuse = ZeroDivisionError("secret detail")
    async with httpx.AsyncClient(timeout=None) as http:
        answer = await http.post(
            f"{url}/v1/completions", json={"model": "tiny", "prompt": "x"}, headers={"x-request-id": "r-7"}
        )
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert "r-7" in answer.json()["error"]["message"]
    assert "secret detail" in caplog.text
