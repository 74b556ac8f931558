"""Responses in SQLite: found by their tenant alone, bounded in bytes and age, and what a bad disk does to them."""

from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import msgspec
import pytest

from gateway.stored.database import StoreUnusable
from gateway.stored.responses import DEAD_SECONDS, ResponseRuns, StoredResponse, StoredResponses, StoredState
from tests.harness.wall_clock import WallClock

MIB = 2**20


@pytest.fixture
def wall() -> WallClock:
    return WallClock(1000.0)


@pytest.fixture
async def store(tmp_path: Path, wall: WallClock) -> AsyncIterator[StoredResponses]:
    found = StoredResponses(tmp_path / "kept", seconds=100.0, most_bytes=MIB, clock=wall)
    yield found
    await found.aclose()


def response(id: str, owner: str = "", text: str = "hi", state: StoredState = StoredState.ENDED) -> StoredResponse:
    return StoredResponse(id, owner, msgspec.json.encode({"id": id, "text": text}), b"[1,2]", 1, state)


async def test_a_response_is_found_by_its_id_and_its_tenant_together(store: StoredResponses) -> None:
    assert await store.keep(lambda: response("resp_1", "ann"))
    found = await store.find("resp_1", "ann")
    assert found == response("resp_1", "ann")
    assert await store.find("resp_1", "bob") is None is await store.find("resp_2", "ann")
    assert not await store.delete("resp_1", "bob") and await store.find("resp_1", "ann") is not None
    assert await store.delete("resp_1", "ann") and await store.find("resp_1", "ann") is None
    assert not await store.delete("resp_1", "ann")


async def test_another_process_finds_it_too_and_after_a_restart(store: StoredResponses, tmp_path: Path) -> None:
    await store.keep(lambda: response("resp_1"))
    other = StoredResponses(tmp_path / "kept", seconds=100.0, most_bytes=MIB, clock=lambda: 1000.0)
    assert await other.find("resp_1", "") is not None
    await other.aclose()
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "kept" / "responses.sqlite").stat().st_mode & 0o777 == 0o600


async def test_an_old_response_is_gone(store: StoredResponses, wall: WallClock) -> None:
    await store.keep(lambda: response("resp_1"))
    wall.seconds += 100.0
    assert await store.find("resp_1", "") is not None
    wall.seconds += 1.0
    assert await store.find("resp_1", "") is None


async def test_the_tenant_that_holds_most_loses_its_oldest_responses(
    store: StoredResponses, tmp_path: Path, wall: WallClock
) -> None:
    random = Random(1)
    await store.keep(lambda: response("first", "small"))
    for number in range(60):
        wall.seconds += 0.1
        text = random.randbytes(40_000).hex()
        assert await store.keep(lambda number=number, text=text: response(f"r{number}", "large", text))  # type: ignore[misc]
    kept = [number for number in range(60) if await store.find(f"r{number}", "large") is not None]
    assert await store.find("first", "small") is not None
    assert kept == list(range(kept[0], 60)) and 5 < len(kept) < 40
    assert sum(file.stat().st_size for file in (tmp_path / "kept").iterdir()) < 8 * MIB


async def test_a_response_beyond_the_bound_is_not_kept_and_others_stay(store: StoredResponses) -> None:
    await store.keep(lambda: response("small"))
    assert not await store.keep(lambda: response("large", text=Random(1).randbytes(MIB).hex()))
    assert await store.find("small", "") is not None and await store.find("large", "") is None


async def test_a_response_in_the_background_has_failed_when_its_process_is_silent(
    store: StoredResponses, wall: WallClock
) -> None:
    await store.keep(lambda: response("resp_1", state=StoredState.RUNNING))
    wall.seconds += DEAD_SECONDS - 1
    assert await store.beat("resp_1", "")
    wall.seconds += DEAD_SECONDS - 1
    found = await store.find("resp_1", "")
    assert found is not None and found.state is StoredState.RUNNING
    wall.seconds += 2
    found = await store.find("resp_1", "")
    assert found is not None and found.state is StoredState.ENDED
    assert msgspec.json.decode(found.answer)["status"] == "failed"


async def test_a_response_that_runs_is_not_begun_again_by_another_process(
    store: StoredResponses, tmp_path: Path, wall: WallClock
) -> None:
    other = StoredResponses(tmp_path / "kept", seconds=100.0, most_bytes=MIB, clock=wall)
    await store.keep(lambda: response("resp_1", "ann", "mine", StoredState.RUNNING))
    with pytest.raises(ResponseRuns):
        await other.keep(lambda: response("resp_1", "ann", "other", StoredState.RUNNING))
    found = await store.find("resp_1", "ann")
    assert found is not None and b"mine" in found.answer
    assert await other.keep(lambda: response("resp_1", "bob", "other", StoredState.RUNNING))
    wall.seconds += DEAD_SECONDS + 1
    assert await other.keep(lambda: response("resp_1", "ann", "other", StoredState.RUNNING)), "its process is gone"
    await other.aclose()


async def test_the_first_end_of_a_response_stays(store: StoredResponses) -> None:
    await store.keep(lambda: response("resp_1", state=StoredState.RUNNING))
    assert await store.end("resp_1", "", b'{"a":1}') and not await store.end("resp_1", "", b'{"a":2}')
    found = await store.find("resp_1", "")
    assert found is not None and found.answer == b'{"a":1}' and not await store.beat("resp_1", "")
    assert not await store.end("never", "", b"{}")


async def test_a_damaged_file_is_put_aside_and_a_new_one_begins(tmp_path: Path, wall: WallClock) -> None:
    (tmp_path / "responses.sqlite").write_bytes(b"no database" * 1000)
    store = StoredResponses(tmp_path, seconds=100.0, most_bytes=MIB, clock=wall)
    assert not await store.keep(lambda: response("resp_1"))
    assert await store.keep(lambda: response("resp_1")) and await store.find("resp_1", "") is not None
    assert (tmp_path / "responses.damaged").exists()
    await store.aclose()


async def test_a_folder_that_cannot_be_made_loses_responses_and_says_so_once(
    tmp_path: Path, wall: WallClock, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    store = StoredResponses(tmp_path / "file", seconds=100.0, most_bytes=MIB, clock=wall)
    assert not await store.keep(lambda: response("resp_1")) and not await store.keep(lambda: response("resp_2"))
    with pytest.raises(StoreUnusable):
        await store.find("resp_1", "")
    await store.aclose()
    assert caplog.text.count("responses cannot be stored, see the setting responses_folder") == 1


async def test_a_file_that_is_put_aside_is_left_by_all_processes(tmp_path: Path, wall: WallClock) -> None:
    one, other, third = (StoredResponses(tmp_path, seconds=100.0, most_bytes=MIB, clock=wall) for _ in range(3))
    assert await one.keep(lambda: response("old")) and await other.find("old", "") is not None
    (tmp_path / "responses.sqlite").write_bytes(b"no database" * 1000)
    (tmp_path / "responses.sqlite-wal").unlink()
    with pytest.raises(StoreUnusable, match="put aside"):
        await third.find("old", "")
    assert await one.keep(lambda: response("new"))
    assert await other.find("new", "") is not None, "it works on the new file, and has not put that aside"
    assert await other.keep(lambda: response("more")) and await one.find("more", "") is not None
    for store in (one, other, third):
        await store.aclose()


async def test_a_file_that_is_removed_begins_anew(store: StoredResponses, tmp_path: Path) -> None:
    assert await store.keep(lambda: response("old"))
    for file in (tmp_path / "kept").iterdir():
        file.unlink()
    assert await store.find("old", "") is None and await store.keep(lambda: response("new"))
    assert (tmp_path / "kept" / "responses.sqlite").exists()


async def test_an_error_shows_no_path_of_the_machine(tmp_path: Path, wall: WallClock) -> None:
    (tmp_path / "file").write_text("")
    store = StoredResponses(tmp_path / "file", seconds=100.0, most_bytes=MIB, clock=wall)
    with pytest.raises(StoreUnusable) as unusable:
        await store.find("resp_1", "")
    assert str(tmp_path) not in str(unusable.value)
    await store.aclose()
