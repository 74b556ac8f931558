"""The store of files and batches: who finds what, what there is room for, and who runs a batch."""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from gateway.batches.bounds import FileBounds
from gateway.batches.records import BatchRecord
from gateway.batches.store import DEAD_SECONDS, BatchStore, NoRoom
from tests.harness.wall_clock import WallClock


@pytest.fixture
def wall() -> WallClock:
    return WallClock(1e6)


def opened(folder: Path, wall: WallClock) -> BatchStore:
    return BatchStore(folder, FileBounds(1000, 0.5), days=1.0, clock=wall, random=Random(1))


@pytest.fixture
async def store(tmp_path: Path, wall: WallClock) -> AsyncIterator[BatchStore]:
    made = opened(tmp_path, wall)
    yield made
    await made.aclose()


async def put(store: BatchStore, owner: str, size: int = 10, purpose: str = "batch") -> str:
    number, path = store.new_content()
    with open(number, "wb") as file:
        file.write(b"x" * size)
    try:
        return (await store.add_file(owner, path, name="a.jsonl", purpose=purpose)).id
    finally:
        path.unlink()


def record(store: BatchStore, id: str = "batch_1") -> BatchRecord:
    return BatchRecord(
        id=id,
        endpoint="/v1/completions",
        input_file_id="file-1",
        completion_window="24h",
        created_at=int(store.clock()),
        expires_at=int(store.clock()) + 86400,
    )


async def test_a_file_belongs_to_its_tenant_alone(store: BatchStore) -> None:
    id = await put(store, "ann")
    assert await store.file(id, "bob") is None and not await store.delete_file(id, "bob")
    found = await store.file(id, "ann")
    assert found is not None and (found.bytes, found.filename) == (10, "a.jsonl")
    assert store.path(id, "ann").read_bytes() == b"x" * 10 and not store.path(id, "bob").exists()
    assert await store.delete_file(id, "ann") and not store.path(id, "ann").exists()


async def test_files_have_a_bound_together(store: BatchStore) -> None:
    first = await put(store, "ann", 400)
    await put(store, "bob", 400)
    with pytest.raises(NoRoom) as refused:
        await put(store, "cid", 300)
    assert not refused.value.share and await store.room("cid") == 200 and await store.room("ann") == 100
    await store.delete_file(first, "ann")
    await put(store, "cid", 300)


async def test_one_tenant_cannot_fill_the_disk_for_the_others(
    store: BatchStore, tmp_path: Path, wall: WallClock
) -> None:
    await put(store, "ann", 500)
    with pytest.raises(NoRoom) as refused:
        await put(store, "ann", 1)
    assert refused.value.share and await store.room("ann") == 0
    await put(store, "bob", 500)
    whole = BatchStore(tmp_path / "whole", FileBounds(1000), days=1.0, clock=wall, random=Random(1))
    await put(whole, "ann", 1000)
    await whole.aclose()


async def test_clients_without_keys_are_no_tenant(store: BatchStore) -> None:
    await put(store, "", 1000)
    assert await store.room("") == 0


async def test_outcomes_of_batches_that_run_take_room(store: BatchStore) -> None:
    await put(store, "ann", 100)
    for id in ("batch_1", "batch_2"):
        await store.add_batch("ann", record(store, id))
        store.outcomes(id, "ann")[0].write_bytes(b"x" * 250)
    assert await store.room("ann") == -100 and await store.room("bob") == 400


async def test_old_files_make_room(store: BatchStore, wall: WallClock) -> None:
    first = await put(store, "ann", 500)
    wall.seconds += 86_401
    await put(store, "bob", 500)
    assert await store.file(first, "ann") is None and not store.path(first, "ann").exists()


async def test_lists_have_pages_in_both_orders(store: BatchStore, wall: WallClock) -> None:
    ids = []
    for number in range(5):
        wall.seconds += 1
        ids.append(await put(store, "ann", purpose="batch" if number % 2 else "evals"))
    await put(store, "bob")

    async def page(newest: bool, limit: int, after: str | None, purpose: str | None = None) -> tuple[list[str], bool]:
        found, more = await store.files("ann", purpose=purpose, limit=limit, after=after, newest_first=newest)
        return [each.id for each in found], more

    assert await page(True, 3, None) == (ids[:1:-1], True) and await page(True, 3, ids[2]) == (ids[1::-1], False)
    assert await page(False, 5, None) == (ids, False) and await page(False, 5, ids[3]) == (ids[4:], False)
    assert await page(False, 5, None, "batch") == ([ids[1], ids[3]], False)
    with pytest.raises(KeyError):
        await page(True, 3, "file-unheard")


async def test_a_batch_is_run_by_one_process_at_a_time(store: BatchStore, tmp_path: Path, wall: WallClock) -> None:
    other = opened(tmp_path, wall)
    await store.add_batch("ann", record(store))
    assert (await store.claim("a")) is not None and await other.claim("b") is None
    wall.seconds += DEAD_SECONDS - 1
    assert await store.beat("batch_1", "ann", "a", lambda record: None) is not None
    wall.seconds += DEAD_SECONDS - 1
    assert await other.claim("b") is None
    wall.seconds += 2
    assert await other.claim("b") is not None
    assert await store.beat("batch_1", "ann", "a", lambda record: None) is None, "another process has taken it"
    await other.release("batch_1", "ann", "b")
    assert await store.claim("a") is not None
    await store.beat("batch_1", "ann", "a", lambda record: record.enter("completed", 1.0))
    wall.seconds += DEAD_SECONDS + 1
    assert await store.claim("a") is None, "it has ended"
    await other.aclose()


async def test_a_clock_that_is_set_back_holds_no_batch(store: BatchStore, wall: WallClock) -> None:
    await store.add_batch("ann", record(store))
    assert await store.claim("a") is not None
    wall.seconds -= DEAD_SECONDS - 1
    assert await store.claim("b") is None
    wall.seconds -= 3600
    assert await store.claim("b") is not None


async def test_a_tenant_with_many_batches_does_not_hold_up_another(store: BatchStore, wall: WallClock) -> None:
    for number in range(3):
        wall.seconds += 1
        await store.add_batch("ann", record(store, f"batch_a{number}"))
    await store.add_batch("bob", record(store, "batch_b"))
    found = [await store.claim("a") for _ in range(2)]
    assert [each and each[1].id for each in found] == ["batch_a0", "batch_b"]
    assert await store.claim("a", ["ann"]) is None
    last = await store.claim("a", ["bob"])
    assert last is not None and last[1].id == "batch_a1"


async def test_outcomes_are_stored_beyond_the_bound(store: BatchStore) -> None:
    number, path = store.new_content()
    with open(number, "wb") as file:
        file.write(b"x" * 1001)
    with pytest.raises(NoRoom):
        await store.add_file("ann", path, name="out", purpose="batch_output")
    assert (await store.add_file("ann", path, name="out", purpose="batch_output", bounded=False)).bytes == 1001
    assert await store.room("bob") < 0 and await store.room("ann") < 0


async def test_what_killed_processes_left_is_removed(store: BatchStore, tmp_path: Path, wall: WallClock) -> None:
    """Uploads that never ended, outcomes of batches that are over, contents without a row; nothing else."""
    kept, run = await put(store, "ann"), record(store)
    await store.add_batch("ann", run)
    number, living = store.new_content()
    dead_number, dead = store.new_content()
    os.close(dead_number)
    over, orphan = store.outcomes("batch_over", "ann")[0], store.path("file-unheard", "ann")
    mine, young = store.outcomes(run.id, "ann")[0], store.path("file-young", "ann")
    for path in (over, orphan, mine, young):
        path.write_bytes(b"x")
    for path in (store.path(kept, "ann"), living, dead, over, orphan, mine):
        os.utime(path, (wall.seconds - 100_000, wall.seconds - 100_000))
    os.utime(young, (wall.seconds - 10, wall.seconds - 10))
    (tmp_path / "files.damaged").write_bytes(b"")
    await store.sweep()
    assert orphan.exists(), "it may be a content of the database that was put aside"
    (tmp_path / "files.damaged").unlink()
    await store.sweep()
    assert set((tmp_path / "contents").iterdir()) == {store.path(kept, "ann"), living, mine, young}
    os.close(number)


async def test_an_empty_store_touches_no_disk(tmp_path: Path, wall: WallClock) -> None:
    store = opened(tmp_path / "never", wall)
    assert store.is_empty and not (tmp_path / "never").exists()
    await store.aclose()
