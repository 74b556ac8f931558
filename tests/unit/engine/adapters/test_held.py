"""A worker's adapters: names, contents in memory within bounds, and requests that wait for a place."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from baton_kernels.deltas import LowRank, pack_delta
from engine.adapters.held import AdapterLease, AdapterRefused, HeldAdapters
from engine.formats.errors import ModelError
from engine.step.adapted import AdapterWeights


def weights(digest: str) -> AdapterWeights:
    part = LowRank(np.ones((4, 16), np.float32), np.ones((32, 4), np.float32), 1.0)
    return AdapterWeights(digest, (pack_delta([part], [32], 16), None, None, None), 4)


SIZE = weights("any").nbytes


class Folders:
    """Contents by folder, and the reads of each."""

    def __init__(self, *digests: str) -> None:
        self.contents = {Path(digest): digest for digest in digests}
        self.reads, self.broken = list[str](), False

    async def read(self, folder: Path) -> AdapterWeights:
        await asyncio.sleep(0)
        if self.broken:
            raise OverflowError("too large")
        if folder not in self.contents:
            raise ModelError(folder, "file", "does not exist", "Name another.")
        self.reads.append(str(folder))
        return weights(self.contents[folder])


async def held(folders: Folders, *, places: int = 2, most_bytes: int = 10 * SIZE) -> HeldAdapters:
    found = HeldAdapters(folders.read, places=places, most_bytes=most_bytes)
    for folder in list(folders.contents):
        named, lease = await found.load(str(folder), folder)
        found.assign(named)
        lease.close()
    return found


def lease(adapters: HeldAdapters, digest: str) -> AdapterLease:
    found = adapters.lease(digest)
    assert isinstance(found, AdapterLease)
    return found


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_an_idle_adapter_makes_room_and_comes_back_from_its_folder() -> None:
    folders = Folders("a", "b", "c")
    adapters = await held(folders)
    assert adapters.counts()["adapters_in_memory"] == 2
    first = lease(adapters, "c")
    first.want()
    await settle()
    assert first.ready and first.weights is not None and first.weights.digest == "c"
    for digest in "abcab":
        one = lease(adapters, digest)
        one.want()
        await settle()
        assert one.ready, "one place is free beside the one in use"
        one.close()
        assert adapters.counts()["adapters_in_memory"] <= 2
    assert first.ready and folders.reads.count("c") <= 2, "one in use never leaves"


async def test_requests_wait_for_a_place_in_their_order() -> None:
    adapters = await held(Folders("a", "b", "c"), places=1)
    woken = list[int]()
    adapters.waking(lambda: woken.append(1))
    running, second, third, again = (lease(adapters, digest) for digest in "abca")
    for each in (running, second, third, again):
        each.want()
    await settle()
    assert (running.ready, second.ready, third.ready) == (True, False, False)
    assert not again.ready or running.ready, "it shares the place of its content or waits"
    running.close()
    again.close()
    await settle()
    assert second.ready and not third.ready
    second.close()
    await settle()
    assert third.ready and woken
    third.close()
    assert adapters.counts()["adapters_waiting"] == 0


async def test_those_behind_the_first_in_line_never_keep_its_place_from_it() -> None:
    adapters = await held(Folders("a", "b", "c"), places=2)
    running = [lease(adapters, digest) for digest in "bc"]
    for each in running:
        each.want()
    await settle()
    assert all(each.ready for each in running)
    line = [lease(adapters, digest) for digest in "abc"]
    for each in line:
        each.want()
    for each in running:
        each.close()
    await settle()
    assert line[0].ready, "b and c are in memory and wanted, and no request computes with them"
    for each in line:
        each.close()
        await settle()
    assert adapters.counts()["adapters_waiting"] == 0


async def test_a_name_that_moves_leaves_requests_their_content(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.adapters.held.GRACE_SECONDS", 0.0)
    folders = Folders("a")
    adapters = await held(folders)
    old = lease(adapters, "a")
    old.want()
    folders.contents[Path("a")] = "b"
    named, pending = await adapters.load("a", Path("a"))
    assert adapters.named()[0].digest == "a", "not before it is assigned"
    adapters.assign(named)
    pending.close()
    await settle()
    assert adapters.named()[0].digest == "b" and old.weights is not None and old.weights.digest == "a"
    old.close()
    await settle()
    assert adapters.lease("a") is None


async def test_a_content_that_its_folder_lost_is_a_fault_of_its_requests_alone() -> None:
    folders = Folders("a", "b")
    adapters = await held(folders, places=1)
    folders.contents[Path("a")] = "other"
    gone, fine = lease(adapters, "a"), lease(adapters, "b")
    gone.want()
    fine.want()
    await settle()
    assert "another content" in gone.fault and not gone.ready
    assert fine.ready and not fine.fault


async def test_a_content_comes_back_from_the_folder_of_any_of_its_names() -> None:
    folders = Folders("a", "b")
    adapters = await held(folders, places=1)
    folders.contents[Path("twin")] = "a"
    named, pending = await adapters.load("twin", Path("twin"))
    adapters.assign(named)
    pending.close()
    folders.contents[Path("twin")] = "other"
    for digest in "ba":
        wanted = lease(adapters, digest)
        wanted.want()
        await settle()
        assert wanted.ready and not wanted.fault, "folder a still holds it"
        wanted.close()


async def test_an_error_that_no_check_foresees_refuses_the_load_and_ends_the_requests() -> None:
    folders = Folders("a", "b")
    adapters = await held(folders, places=1)
    folders.broken = True
    with pytest.raises(AdapterRefused, match=r"'c': c: cannot be read .OverflowError: too large"):
        await adapters.load("c", Path("c"))
    waiting = lease(adapters, "a")
    waiting.want()
    await settle()
    assert "OverflowError" in waiting.fault and adapters.counts()["adapters_waiting"] == 0


async def test_bytes_are_bounded_as_places_are() -> None:
    adapters = await held(Folders("a", "b"), places=9, most_bytes=SIZE)
    assert adapters.counts()["adapter_bytes"] == SIZE
    small = HeldAdapters(Folders("a").read, places=9, most_bytes=SIZE - 1)
    with pytest.raises(AdapterRefused, match="raise lora_bytes"):
        await small.load("a", Path("a"))
    with pytest.raises(AdapterRefused, match=r"adapter 'z': .*does not exist"):
        await adapters.load("z", Path("z"))


async def test_a_request_without_an_adapter_needs_none() -> None:
    adapters: Any = await held(Folders())
    alone = adapters.lease("")
    alone.want()
    assert alone.ready and alone.weights is None
    assert adapters.lease("unknown") is None
