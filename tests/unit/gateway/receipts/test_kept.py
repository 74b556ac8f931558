"""Receipts on disk: found by id and owner, for a while, within a bound."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway.receipts.kept import BLOCK_BYTES, KeptReceipts


@dataclass
class DiskClock:
    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> DiskClock:
    return DiskClock()


def kept_in(folder: Path, clock: DiskClock, *, blocks: int = 64, seconds: float = 100.0) -> KeptReceipts:
    return KeptReceipts(folder / "kept", seconds=seconds, most_bytes=blocks * BLOCK_BYTES, clock=clock)


def test_a_receipt_is_found_by_another_process_that_shares_the_folder(tmp_path: Path, clock: DiskClock) -> None:
    kept_in(tmp_path, clock).keep("rcpt-1", "", b"one")
    assert kept_in(tmp_path, clock).find("rcpt-1", "") == b"one"
    assert kept_in(tmp_path, clock).find("rcpt-2", "") is None


def test_files_are_their_owners_alone(tmp_path: Path, clock: DiskClock) -> None:
    kept_in(tmp_path, clock).keep("rcpt-1", "", b"one")
    (file,) = (tmp_path / "kept").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600 and file.parent.stat().st_mode & 0o777 == 0o700
    assert "rcpt-1" not in file.name


def test_only_its_owner_finds_a_receipt(tmp_path: Path, clock: DiskClock) -> None:
    kept = kept_in(tmp_path, clock)
    kept.keep("rcpt-1", "tenant-a", b"one")
    assert kept.find("rcpt-1", "tenant-a") == b"one"
    assert [kept.find("rcpt-1", owner) for owner in ("", "tenant-b", "tenant-aa")] == [None] * 3
    assert kept.find("arcpt-1", "tenant-") is None


@pytest.mark.parametrize("id", ["../key.pem", "", "/etc/passwd", "a\0b", "ü" * 500, "\ud800"])
def test_no_id_leads_out_of_the_folder(tmp_path: Path, clock: DiskClock, id: str) -> None:
    (tmp_path / "key.pem").write_text("secret")
    kept = kept_in(tmp_path, clock)
    kept.keep("rcpt-1", "", b"one")
    assert kept.find(id, "") is None


def test_old_receipts_are_not_found_and_leave_the_disk(tmp_path: Path, clock: DiskClock) -> None:
    kept = kept_in(tmp_path, clock)
    kept.keep("rcpt-1", "", b"one")
    clock.now += 99
    assert kept.find("rcpt-1", "") == b"one"
    clock.now += 2
    assert kept.find("rcpt-1", "") is None
    kept.prune()
    assert list((tmp_path / "kept").iterdir()) == []


def test_the_disk_stays_within_the_bound_and_the_newest_stay(tmp_path: Path, clock: DiskClock) -> None:
    kept = kept_in(tmp_path, clock, blocks=64)
    for number in range(1000):
        clock.now += 0.01
        kept.keep(f"rcpt-{number}", "", b"x" * (number % 5000))
        used = sum(-(-file.stat().st_size // BLOCK_BYTES) for file in (tmp_path / "kept").iterdir())
        assert used <= 64
        assert kept.find(f"rcpt-{number}", "") is not None
    assert kept.find("rcpt-990", "") is not None and kept.find("rcpt-1", "") is None


def test_what_exceeds_the_whole_bound_is_not_kept(tmp_path: Path, clock: DiskClock) -> None:
    kept = kept_in(tmp_path, clock, blocks=0)
    kept.keep("rcpt-1", "", b"one")
    assert kept.find("rcpt-1", "") is None and not (tmp_path / "kept").exists()


def test_a_failed_write_leaves_nothing_behind(
    tmp_path: Path, clock: DiskClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = kept_in(tmp_path, clock)

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space"):
        kept.keep("rcpt-1", "", b"one")
    assert list((tmp_path / "kept").iterdir()) == []
