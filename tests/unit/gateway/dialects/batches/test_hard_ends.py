"""Ends of batches that come at bad moments: what was computed is never lost, and no batch runs for ever."""

import asyncio
import threading
from collections.abc import Callable, Iterator

import openai
import pytest

from gateway.batches.input_file import BatchInput
from gateway.batches.ledger_file import LedgerFile
from gateway.batches.lines import BatchLine
from gateway.batches.outcome import BatchAnswer
from gateway.batches.problems import LedgerUnwritable
from gateway.batches.store import BatchStore
from gateway.dialects.api import HttpApi
from gateway.dialects.batches.asker import InnerAsker
from tests.harness.waiting import within
from tests.harness.wall_clock import WallClock
from tests.unit.gateway.conftest import FakeCore
from tests.unit.gateway.dialects.batches.conftest import begin, content, lines, until, upload

NewApi = Callable[[], tuple[HttpApi, BatchStore]]


async def killed(api: HttpApi, monkeypatch: pytest.MonkeyPatch, when: Callable[[], bool]) -> None:
    """Run the batches until then; nothing is released, as by a process that is killed."""
    assert api.batch_work is not None
    task = asyncio.create_task(api.batch_work.run())
    await within(20, lambda: when())

    async def nothing(*_: object) -> None:
        pass

    with monkeypatch.context() as patched:
        patched.setattr(BatchStore, "release", nothing)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_torn_line_of_a_killed_process_reaches_no_client(
    client: openai.AsyncOpenAI,
    api: HttpApi,
    core: FakeCore,
    wall: WallClock,
    new_api: NewApi,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The batch is cancelled while nobody runs it, so no run reads the outcomes again."""
    batch = await begin(client, lines(300))
    await killed(api, monkeypatch, lambda: len(core.streams) >= 60)
    second, store = new_api()
    output, _ = store.outcomes(batch.id, "")
    whole = output.read_bytes().count(b"\n")
    with output.open("ab") as file:
        file.write(b'{"id": "batch_req_12')
    await client.batches.cancel(batch.id)
    wall.seconds += 60
    assert second.batch_work is not None
    work = asyncio.create_task(second.batch_work.run())
    ended = await until(client, batch.id, "cancelled")
    found = await content(client, ended.output_file_id)
    assert len(found) == whole == ended.request_counts.completed and whole > 0
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


async def test_an_expired_batch_ends_without_its_input_file(
    client: openai.AsyncOpenAI, core: FakeCore, wall: WallClock, working: None
) -> None:
    core.ends = False
    batch = await begin(client, lines(20), completion_window="1h")
    await until(client, batch.id, "in_progress")
    async with asyncio.timeout(10):
        while len(core.streams) < 16:
            await asyncio.sleep(0.01)
    await client.files.delete(batch.input_file_id)
    wall.seconds += 3600
    ended = await until(client, batch.id, "expired")
    assert "input file was deleted" in ended.errors.data[0].message


async def test_a_batch_whose_input_file_is_deleted_says_so(client: openai.AsyncOpenAI, api: HttpApi) -> None:
    batch = await begin(client, lines(2))
    await client.files.delete(batch.input_file_id)
    assert api.batch_work is not None
    work = asyncio.create_task(api.batch_work.run())
    ended = await until(client, batch.id, "failed")
    assert ended.errors.data[0].message.startswith("the input file was deleted")
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


async def test_outcomes_beyond_the_bound_of_all_files_are_not_lost(
    client: openai.AsyncOpenAI, core: FakeCore, working: None
) -> None:
    await upload(client, b"x" * 600_000, "user_data")
    batch = await begin(client, lines(3000))
    ended = await until(client, batch.id, "failed")
    assert ended.errors.data[0].code == "files_full" and "files_mib" in ended.errors.data[0].message
    found = await content(client, ended.output_file_id)
    assert len(found) == ended.request_counts.completed > 100


async def test_a_full_disk_delays_a_batch_and_does_not_fail_it(
    client: openai.AsyncOpenAI, wall: WallClock, working: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = asyncio.Event()

    def full(*_: object) -> None:
        tried.set()
        raise LedgerUnwritable("no space left")

    append = LedgerFile.append
    monkeypatch.setattr(LedgerFile, "append", full)
    batch = await begin(client, lines(20))
    async with asyncio.timeout(10):
        await tried.wait()
    await asyncio.sleep(0.1)
    assert (await client.batches.retrieve(batch.id)).status == "in_progress"
    monkeypatch.setattr(LedgerFile, "append", append)
    wall.seconds += 60
    ended = await until(client, batch.id, "completed")
    assert len(await content(client, ended.output_file_id)) == 20


async def test_a_process_that_leaves_asks_nothing_more_and_another_one_goes_on(
    client: openai.AsyncOpenAI, api: HttpApi, core: FakeCore, new_api: NewApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No clock is moved: what it leaves is free at once."""
    assert api.batch_work is not None
    go, asked, ask = asyncio.Event(), list[str](), InnerAsker.ask

    async def slow(self: InnerAsker, url: str, body: bytes) -> BatchAnswer:
        asked.append(url)
        await go.wait()
        return await ask(self, url, body)

    monkeypatch.setattr(InnerAsker, "ask", slow)
    batch = await begin(client, lines(40))
    first = asyncio.create_task(api.batch_work.run())
    async with asyncio.timeout(10):
        while len(asked) < 16:
            await asyncio.sleep(0.01)
    api.leave()
    go.set()
    await asyncio.sleep(0.3)
    assert len(core.streams) == 16 == len(asked), "what was under way has ended, and nothing more has begun"
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    second, _ = new_api()
    assert second.batch_work is not None
    work = asyncio.create_task(second.batch_work.run())
    ended = await until(client, batch.id, "completed")
    found = await content(client, ended.output_file_id)
    assert ended.request_counts.completed == 40 == len({each["custom_id"] for each in found}) == len(core.streams)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


async def test_the_event_loop_does_not_read_the_input_file(
    client: openai.AsyncOpenAI, working: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To skip what another process has done takes seconds in a large file."""
    threads, requests = set[int](), BatchInput.requests

    def noted(self: BatchInput, skipped: Callable[[bytes], bool]) -> Iterator[BatchLine]:
        for line in requests(self, skipped):
            threads.add(threading.get_ident())
            yield line

    monkeypatch.setattr(BatchInput, "requests", noted)
    batch = await begin(client, lines(20))
    await until(client, batch.id, "completed")
    assert threads and threading.get_ident() not in threads


async def test_an_upload_that_the_disk_refuses_names_no_path(
    client: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "/secret/files/contents")

    monkeypatch.setattr(BatchStore, "new_content", refuse)
    with pytest.raises(openai.APIStatusError, match="cannot be stored now: Permission denied") as refused:
        await upload(client, b"x")
    assert refused.value.status_code == 503 and "secret" not in str(refused.value)
