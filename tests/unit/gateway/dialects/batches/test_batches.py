"""`/v1/files` and `/v1/batches` with the OpenAI SDK, whose strict mode checks every answer against its types."""

import asyncio
import json
from collections.abc import Callable

import httpx2
import openai
import pytest

from gateway.batches.store import BatchStore
from gateway.dialects.api import HttpApi
from tests.harness.wall_clock import WallClock
from tests.unit.gateway.conftest import FakeCore
from tests.unit.gateway.dialects.batches.conftest import begin, content, lines, until, upload


async def test_files_are_stored_listed_read_and_removed(client: openai.AsyncOpenAI) -> None:
    body = lines(3)
    file = await upload(client, body)
    assert (file.bytes, file.filename, file.purpose, file.status) == (len(body), "in.jsonl", "batch", "processed")
    other = await upload(client, b"\r\n--x\r\n" * 50_000, "user_data")
    assert await client.files.retrieve(file.id) == file
    assert (await client.files.content(file.id)).content == body
    assert (await client.files.content(other.id)).content == b"\r\n--x\r\n" * 50_000
    assert {each.id async for each in client.files.list()} == {file.id, other.id}
    assert [each.id async for each in client.files.list(purpose="batch")] == [file.id]
    assert (await client.files.delete(file.id)).deleted
    with pytest.raises(openai.NotFoundError):
        await client.files.retrieve(file.id)
    with pytest.raises(openai.NotFoundError):
        await client.files.content(file.id)


async def test_a_wrong_upload_is_refused_by_field(client: openai.AsyncOpenAI, http: httpx2.AsyncClient) -> None:
    with pytest.raises(openai.BadRequestError, match="purpose is 'nothing'"):
        await upload(client, b"x", "nothing")
    with pytest.raises(openai.BadRequestError, match="file is empty"):
        await upload(client, b"")
    with pytest.raises(openai.APIStatusError, match="files_mib"):
        await upload(client, b"x" * (2**20 + 1))
    await upload(client, b"x" * 2**19)
    with pytest.raises(openai.APIStatusError, match="files_mib"):
        await upload(client, b"x" * (2**19 + 1))
    plain = await http.post("/files", json={"purpose": "batch"})
    assert plain.status_code == 415 and "multipart/form-data" in plain.text
    missing = await http.post("/files", files={"other": ("a", b"x")}, data={"purpose": "batch"})
    assert missing.status_code == 400 and "other" in missing.json()["error"]["param"]
    with pytest.raises(openai.BadRequestError, match="after"):
        await client.files.list(after="file-unheard")


async def test_a_batch_runs_to_its_end(client: openai.AsyncOpenAI, core: FakeCore, working: None) -> None:
    batch = await begin(client, lines(20), metadata={"a": "b"})
    assert (batch.status, batch.metadata) == ("validating", {"a": "b"})
    ended = await until(client, batch.id, "completed")
    counts = ended.request_counts
    assert (counts.total, counts.completed, counts.failed) == (20, 20, 0) and ended.error_file_id is None
    found = await content(client, ended.output_file_id)
    assert {each["custom_id"] for each in found} == {f"r-{number}" for number in range(20)}
    assert all(each["response"]["body"]["choices"][0]["text"] == "hello world" for each in found)
    assert (await client.files.retrieve(ended.output_file_id)).purpose == "batch_output"
    assert [each.id async for each in client.batches.list()] == [batch.id]
    assert all(stream.choice.priority == 300 for stream in core.streams)
    with pytest.raises(openai.BadRequestError, match="completed"):
        await client.batches.cancel(batch.id)


async def test_requests_that_fail_stand_in_a_file_of_their_own(client: openai.AsyncOpenAI, working: None) -> None:
    bad = json.dumps(
        {"custom_id": "bad", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x", "temperature": -1}}
    )
    batch = await begin(client, lines(2) + bad.encode())
    ended = await until(client, batch.id, "completed")
    assert (ended.request_counts.completed, ended.request_counts.failed) == (2, 1)
    (line,) = await content(client, ended.error_file_id)
    assert line["custom_id"] == "bad" and line["response"]["status_code"] == 400


async def test_faulty_lines_fail_the_batch_before_anything_runs(
    client: openai.AsyncOpenAI, core: FakeCore, working: None
) -> None:
    for body, param in (
        (lines(2) + b"{", None),
        (lines(2, url="/v1/embeddings"), "url"),
        (lines(1) * 2, "custom_id"),
        (b"\n", None),
    ):
        batch = await begin(client, body)
        ended = await until(client, batch.id, "failed")
        assert ended.errors.data[0].param == param, body
        assert "/tmp" not in ended.errors.data[0].message
    assert core.streams == []


async def test_a_wrong_batch_is_refused_by_field(client: openai.AsyncOpenAI) -> None:
    other = await upload(client, lines(1), "user_data")
    for changes, field in (
        ({"endpoint": "/v1/moderations"}, "endpoint"),
        ({"completion_window": "soon"}, "completion_window"),
        ({"input_file_id": "file-unheard"}, "input_file_id"),
        ({"input_file_id": other.id}, "input_file_id"),
        ({"metadata": {"a": 1}}, "metadata"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            await begin(client, lines(1), **changes)
        assert str(refused.value.param).startswith(field)
    for call in (client.batches.retrieve("batch_x"), client.batches.cancel("batch_x")):
        with pytest.raises(openai.NotFoundError):
            await call


async def test_fields_without_effect_are_named(http: httpx2.AsyncClient) -> None:
    form = {"purpose": "batch", "expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    file = await http.post("/files", files={"file": ("a", lines(1))}, data=form)
    assert file.status_code == 200 and file.headers["x-baton-ignored"] == "expires_after"
    body = {"input_file_id": file.json()["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    wanted = {"output_expires_after": {"anchor": "created_at", "seconds": 3600}, "unheard": 1}
    batch = await http.post("/batches", json=body | wanted)
    assert batch.status_code == 200 and batch.headers["x-baton-ignored"] == "unheard, output_expires_after"


async def test_a_batch_is_cancelled(client: openai.AsyncOpenAI, core: FakeCore, working: None) -> None:
    core.ends = False
    batch = await begin(client, lines(40))
    await until(client, batch.id, "in_progress")
    async with asyncio.timeout(10):
        while len(core.streams) < 16:
            await asyncio.sleep(0.01)
    assert (await client.batches.cancel(batch.id)).status == "cancelling"
    ended = await until(client, batch.id, "cancelled")
    assert ended.request_counts.total == 40 and ended.request_counts.completed == 0
    assert all(stream.cancelled for stream in core.streams)


async def test_a_batch_whose_window_ends_has_expired(
    client: openai.AsyncOpenAI, core: FakeCore, wall: WallClock, working: None
) -> None:
    core.ends = False
    batch = await begin(client, lines(20), completion_window="1h")
    await until(client, batch.id, "in_progress")
    wall.seconds += 3600
    ended = await until(client, batch.id, "expired")
    found = await content(client, ended.error_file_id)
    assert len(found) == 20 == ended.request_counts.failed
    assert {each["error"]["code"] for each in found} == {"batch_expired"}


async def test_another_process_goes_on_where_one_was_killed(
    client: openai.AsyncOpenAI,
    api: HttpApi,
    core: FakeCore,
    wall: WallClock,
    new_api: Callable[[], tuple[HttpApi, BatchStore]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that is killed releases nothing: its beat stops, and half of its last line may be on the disk."""
    assert api.batch_work is not None
    first = asyncio.create_task(api.batch_work.run())
    core.reply = lambda choice: b"from one"
    batch = await begin(client, lines(300))
    async with asyncio.timeout(20):
        while len(core.streams) < 60:
            await asyncio.sleep(0)

    async def nothing(*_: object) -> None:
        pass

    monkeypatch.setattr(BatchStore, "release", nothing)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    asked = len(core.streams)
    assert asked < 300
    core.reply = lambda choice: b"from two"
    second, _ = new_api()
    assert second.batch_work is not None
    work = asyncio.create_task(second.batch_work.run())
    await asyncio.sleep(1.5)
    assert len(core.streams) == asked, "the beat of the first one counts still"
    wall.seconds += 60
    ended = await until(client, batch.id, "completed")
    found = await content(client, ended.output_file_id)
    texts = [each["response"]["body"]["choices"][0]["text"] for each in found]
    assert sorted(each["custom_id"] for each in found) == sorted(f"r-{number}" for number in range(300))
    assert {"from one", "from two"} == set(texts)
    assert len(core.streams) <= 300 + 16, "what had its outcome is not asked again"
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


async def test_several_batches_share_the_turns_of_a_process(
    client: openai.AsyncOpenAI, core: FakeCore, working: None
) -> None:
    core.ends = False
    first = await begin(client, lines(40))
    await until(client, first.id, "in_progress")
    second = await begin(client, lines(5))
    await until(client, second.id, "in_progress")
    await asyncio.sleep(0.2)
    assert len(core.streams) == 16
    await client.batches.cancel(first.id)
    core.ends = True
    await until(client, first.id, "cancelled")
    assert (await until(client, second.id, "completed")).request_counts.completed == 5
