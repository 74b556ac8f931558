"""A keys file is read again while the gateway runs; one that is half written, broken or gone changes nothing."""

import asyncio
import logging
import os
from pathlib import Path

import pytest

from gateway.tenants.keys import LOOK_SECONDS, KeyFile
from gateway.tenants.tenants import open_tenants
from mesh.config.config_checks import ConfigError
from tests.sim.loop import run_virtual
from tests.unit.gateway.tenants.keys_files import key_of, write_keys


def knows(keys: KeyFile, name: str) -> bool:
    return keys.table.by_key(key_of(name).encode()) is not None


async def looks(keys: KeyFile, times: int = 2) -> None:
    for _ in range(times):
        await keys.look()


async def test_a_changed_file_counts_when_it_rests(tmp_path: Path) -> None:
    keys = KeyFile(write_keys(tmp_path / "keys", alice=""))
    write_keys(tmp_path / "keys", alice="", bob="")
    await keys.look()
    assert not knows(keys, "bob"), "it may still be written"
    await keys.look()
    assert knows(keys, "alice") and knows(keys, "bob")
    write_keys(tmp_path / "keys", bob="")
    await looks(keys)
    assert not knows(keys, "alice"), "a key that is gone is refused"


async def test_an_atomic_replacement_of_equal_size_and_time_is_seen(tmp_path: Path) -> None:
    file = write_keys(tmp_path / "keys", alice="")
    keys, before = KeyFile(file), file.stat()
    other = write_keys(tmp_path / "other", clara="")
    os.utime(other, ns=(before.st_mtime_ns, before.st_mtime_ns))
    other.replace(file)
    await looks(keys)
    assert knows(keys, "clara") and not knows(keys, "alice")


async def test_a_half_written_file_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = write_keys(tmp_path / "keys", alice="concurrent=3", bob="tokens_per_minute=6000")
    keys, whole = KeyFile(file), file.read_bytes()
    torn = [n for n in range(len(whole)) if not whole[:n].endswith(b"\n")]
    for size in torn:
        file.write_bytes(whole[:size])
        with caplog.at_level(logging.WARNING):
            caplog.clear()
            await looks(keys)
        assert knows(keys, "bob") and "stay as they were" in caplog.text, size
        assert key_of("bob") not in caplog.text
    file.write_bytes(whole.replace(b"=3", b"=4"))
    await looks(keys)
    assert keys.table.tenants["alice"].concurrent == 4, "negative control: a whole file is used"


@pytest.mark.parametrize("content", [b"", b"alice sha256:12\n", b"\xff\n", None])
async def test_a_file_that_cannot_be_used_warns_once_and_is_an_error_at_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes | None
) -> None:
    file = write_keys(tmp_path / "keys", alice="")
    keys = KeyFile(file)
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        await looks(keys, 5)
    assert knows(keys, "alice") and len(caplog.records) == 1
    with pytest.raises(ConfigError, match=r"gateway\.keys_file: "):
        open_tenants(file, lambda: 0.0)


async def test_a_file_without_keys_lets_nobody_in(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = KeyFile(write_keys(tmp_path / "keys", alice=""))
    write_keys(tmp_path / "keys")
    await looks(keys)
    assert not knows(keys, "alice") and not keys.table.tenants
    with caplog.at_level(logging.WARNING):
        KeyFile(write_keys(tmp_path / "empty"))
    assert "nobody gets in" in caplog.text


def test_the_gateway_looks_by_itself(tmp_path: Path) -> None:
    keys = KeyFile(write_keys(tmp_path / "keys", alice=""))

    async def main() -> None:
        keys.look = looked  # type: ignore[method-assign]
        watch = asyncio.ensure_future(keys.watch())
        await asyncio.sleep(LOOK_SECONDS * 3.5)
        watch.cancel()

    count = list[int]()

    async def looked() -> None:
        count.append(1)

    run_virtual(main())
    assert len(count) == 3


def test_without_a_file_every_client_is_served_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert open_tenants(None, lambda: 0.0) is None
    assert "every client" in caplog.text
