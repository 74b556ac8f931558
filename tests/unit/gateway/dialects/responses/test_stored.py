"""Stored responses over HTTP, with the OpenAI SDK: retrieved, continued, generated in the background, and removed."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import httpx2
import openai
import pytest

from gateway.dialects.api import HttpApi
from gateway.dialects.responses import background
from gateway.prompts.assets import Assets
from gateway.stored.responses import StoredResponses
from mesh.errors import WorkersDied
from tests.harness.socketless import SocketlessHttp
from tests.harness.waiting import within
from tests.unit.gateway.dialects.reference.test_responses import ADD, CALL, TEMPLATE, prompt_of

WALL = 1_700_000_000.0


@pytest.fixture
def folder(folder: Path) -> Path:
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture
async def api(core: Any, assets: Assets, tmp_path: Path) -> AsyncIterator[HttpApi]:
    stored = StoredResponses(tmp_path / "responses", seconds=3600.0, most_bytes=2**20, clock=lambda: WALL)
    made = HttpApi(core, assets, random=Random(7), clock=lambda: WALL, stored=stored)
    yield made
    await made.aclose()


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


async def test_a_response_is_retrieved_as_it_was_answered(client: openai.AsyncOpenAI) -> None:
    answer = await client.responses.create(model="tiny", input="hi", temperature=0.5, metadata={"a": "b"})
    assert answer.store is True
    assert await client.responses.retrieve(answer.id) == answer


async def test_a_streamed_response_is_retrieved_as_its_last_event_has_it(client: openai.AsyncOpenAI, core: Any) -> None:
    core.reply = b"<think>hm</think>A " + CALL + b"\nB"
    stream = await client.responses.create(model="tiny", input="hi", tools=[ADD], stream=True)
    events: list[Any] = [event async for event in stream]
    assert await client.responses.retrieve(events[-1].response.id) == events[-1].response


async def test_a_response_goes_on_behind_another_one(client: openai.AsyncOpenAI, core: Any) -> None:
    core.reply = b"<think>hm</think>A " + CALL
    first = await client.responses.create(model="tiny", input="one", instructions="Be brief.", tools=[ADD])
    call = first.output[-1]
    assert call.type == "function_call"
    core.reply = b"three"
    result: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "2"}]
    second = await client.responses.create(model="tiny", input=result, previous_response_id=first.id, tools=[ADD])
    assert second.previous_response_id == first.id
    third = await client.responses.create(model="tiny", input="four", previous_response_id=second.id)
    whole = [
        {"role": "user", "content": "one"},
        *[item.to_dict() for item in first.output],
        *result,
        *[item.to_dict() for item in second.output],
        {"role": "user", "content": "four"},
    ]
    told: Any = await client.responses.create(model="tiny", input=whole, store=False)
    assert prompt_of(core, 2) == prompt_of(core, 3)  # without the instructions, which belong to one response
    assert third.output_text == told.output_text == "three" and told.store is False


async def test_a_response_goes_on_when_the_one_before_it_is_removed(client: openai.AsyncOpenAI, core: Any) -> None:
    first = await client.responses.create(model="tiny", input="one")
    second = await client.responses.create(model="tiny", input="two", previous_response_id=first.id)
    await client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        await client.responses.create(model="tiny", input="x", previous_response_id=first.id)
    await client.responses.create(model="tiny", input="three", previous_response_id=second.id)
    assert "one" in prompt_of(core) and "two" in prompt_of(core) and "three" in prompt_of(core)


async def test_input_items_are_listed_in_pages(client: openai.AsyncOpenAI) -> None:
    first = await client.responses.create(model="tiny", input="one")
    second = await client.responses.create(model="tiny", input="two", previous_response_id=first.id)
    newest = await client.responses.input_items.list(second.id, limit=2)
    assert str(newest.data[0].id).startswith("in_") and newest.has_more
    oldest = [item async for item in client.responses.input_items.list(second.id, order="asc", limit=1)]
    assert [item.type for item in oldest] == ["message"] * 3
    assert [item.id for item in oldest][::-1][:2] == [item.id for item in newest.data]


async def test_what_is_not_stored_is_not_found(http: httpx2.AsyncClient) -> None:
    made = await http.post("/responses", json={"input": "hi", "store": False})
    id = made.json()["id"]
    for method, path in (
        ("GET", f"/responses/{id}"),
        ("DELETE", f"/responses/{id}"),
        ("POST", f"/responses/{id}/cancel"),
        ("GET", f"/responses/{id}/input_items"),
        ("GET", "/responses/" + "x" * 600),
    ):
        answer = await http.request(method, path)
        assert (answer.status_code, answer.json()["error"]["reason"]) == (404, "NOT_FOUND"), (method, path)


async def test_questions_about_a_response_are_checked(http: httpx2.AsyncClient) -> None:
    id = (await http.post("/responses", json={"input": "hi"})).json()["id"]
    for path, field in (
        (f"/responses/{id}?stream=true", "stream"),
        (f"/responses/{id}/input_items?limit=0", "limit"),
        (f"/responses/{id}/input_items?limit=x", "limit"),
        (f"/responses/{id}/input_items?limit={'1' * 5000}", "limit"),
        (f"/responses/{id}/input_items?order=up", "order"),
        (f"/responses/{id}/input_items?after=in_x", "after"),
    ):
        answer = await http.get(path)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, field), path
    cancelled = await http.post(f"/responses/{id}/cancel")
    assert cancelled.status_code == 400 and "background" in cancelled.text
    refused = await http.put(f"/responses/{id}")
    assert refused.status_code == 405 and set(refused.headers["allow"].split(", ")) == {"GET", "HEAD", "DELETE"}


# ---- in the background


async def until_ended(client: openai.AsyncOpenAI, id: str) -> Any:
    async with asyncio.timeout(10):
        while (found := await client.responses.retrieve(id)).status == "in_progress":
            await asyncio.sleep(0.01)
    return found


async def test_a_response_is_generated_in_the_background(client: openai.AsyncOpenAI, core: Any) -> None:
    queued = await client.responses.create(model="tiny", input="hi", background=True, metadata={"a": "b"})
    assert (queued.status, queued.background, queued.store, queued.output) == ("in_progress", True, True, [])
    found = await until_ended(client, queued.id)
    assert (found.id, found.status, found.background, found.output_text) == (
        queued.id,
        "completed",
        True,
        "hello world",
    )
    assert found.metadata == {"a": "b"} and len(core.streams) == 1
    more = await client.responses.create(model="tiny", input="more", previous_response_id=queued.id)
    assert more.status == "completed" and "hello world" in prompt_of(core)


async def test_what_runs_in_the_background_is_checked_before(http: httpx2.AsyncClient, core: Any) -> None:
    for body, field in (
        ({"input": "hi", "background": True, "store": False}, "store"),
        ({"input": "hi", "background": True, "stream": True}, "background"),
        ({"input": "x" * 600, "background": True}, "input"),
        ({"input": "hi", "background": True, "temperature": -1}, "temperature"),
    ):
        answer = await http.post("/responses", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, field), body
    assert core.streams == []


async def test_a_response_in_the_background_is_cancelled(client: openai.AsyncOpenAI, core: Any) -> None:
    core.ends = False
    queued = await client.responses.create(model="tiny", input="hi", background=True)
    await within(60, lambda: core.streams)
    with pytest.raises(openai.BadRequestError, match="in_progress"):
        await client.responses.create(model="tiny", input="more", previous_response_id=queued.id)
    cancelled = await client.responses.cancel(queued.id)
    assert cancelled.status == "cancelled" == (await client.responses.retrieve(queued.id)).status
    assert (await client.responses.cancel(queued.id)).status == "cancelled"
    await within(5, lambda: core.streams[0].cancelled)


async def test_two_clients_who_choose_one_id_do_not_share_a_response(http: httpx2.AsyncClient, core: Any) -> None:
    """Both come at once: the second one has to be seen before the first one is on the disk."""
    core.ends = False
    body, headers = {"input": "hi", "background": True}, {"x-request-id": "mine"}
    answers = await asyncio.gather(*(http.post("/responses", json=body, headers=headers) for _ in range(4)))
    assert sorted(each.status_code for each in answers) == [200, 400, 400, 400]
    assert {each.json()["error"]["param"] for each in answers if each.status_code == 400} == {"request_id"}
    await asyncio.sleep(0.05)
    assert len(core.streams) == 1


async def test_what_waits_in_the_background_has_a_bound(
    http: httpx2.AsyncClient, core: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    core.ends = False
    monkeypatch.setattr(background, "MOST_RUNNING", 3)
    answers = [await http.post("/responses", json={"input": "hi", "background": True}) for _ in range(4)]
    assert [each.status_code for each in answers] == [200, 200, 200, 503]
    await http.delete(f"/responses/{answers[0].json()['id']}")
    await asyncio.sleep(0.05)
    assert (await http.post("/responses", json={"input": "hi", "background": True})).status_code == 200
    monkeypatch.setattr(background, "MOST_RUNNING", 9)
    monkeypatch.setattr(background, "MOST_BYTES", 100)
    large = await http.post("/responses", json={"input": "hi", "background": True})
    assert large.status_code == 503 and "in the background" in large.text


async def test_one_that_is_removed_stops(client: openai.AsyncOpenAI, core: Any) -> None:
    core.ends = False
    queued = await client.responses.create(model="tiny", input="hi", background=True)
    await within(60, lambda: core.streams)
    await client.responses.delete(queued.id)
    await within(5, lambda: core.streams[0].cancelled)


async def test_one_that_fails_says_why(client: openai.AsyncOpenAI, core: Any) -> None:
    core.fail_at = {0: WorkersDied("3 workers ended while they computed this request")}
    queued = await client.responses.create(model="tiny", input="hi", background=True)
    found = await until_ended(client, queued.id)
    assert found.status == "failed" and "3 workers ended" in found.error.message


async def test_one_whose_gateway_ends_has_failed(
    client: openai.AsyncOpenAI, api: HttpApi, core: Any, tmp_path: Path
) -> None:
    core.ends = False
    queued = await client.responses.create(model="tiny", input="hi", background=True)
    await within(60, lambda: core.streams)
    await api.aclose()
    stored = StoredResponses(tmp_path / "responses", seconds=3600.0, most_bytes=2**20, clock=lambda: WALL)
    found = await stored.find(queued.id, "")
    assert found is not None and b'"status":"failed"' in found.answer and b"gateway" in found.answer
    await stored.aclose()
