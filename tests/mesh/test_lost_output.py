"""`baton up` goes on wherever its lines go: nobody reads the pipe, the pipe is closed, or the disk is full."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from cli.connecting.health import health
from cli.local_mesh.ports import free_address

pytestmark = [pytest.mark.mesh, pytest.mark.chaos, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 120.0
WHOLE = {"status": "ok", "prefill": 1, "decode": 2}


def fill(writer: int) -> None:
    os.set_blocking(writer, False)
    for size in (4096, 1):
        try:
            while True:
                os.write(writer, b"-" * size)
        except BlockingIOError:
            pass
    os.set_blocking(writer, True)


def stderr_of(where: str) -> int:
    """A descriptor that takes no line. The reader of the pipe that nobody reads stays open."""
    if where == "full disk":
        return os.open("/dev/full", os.O_WRONLY)
    reader, writer = os.pipe()
    if where == "closed pipe":
        os.close(reader)
    else:
        fill(writer)
    return writer


@asynccontextmanager
async def up(where: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    http, stderr = free_address(), stderr_of(where)
    arguments = ["--http", http, "--grpc", free_address(), "--workers", free_address(), "--prefill", "1"]
    path = os.pathsep.join(str(ROOT / name) for name in ("", "kernels", "protos"))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cli", "up", *arguments, "--set", "worker.threads=1"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=stderr,
        env=os.environ | {"PYTHONPATH": path},
    )
    os.close(stderr)
    try:
        yield process, http
    finally:
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await process.wait()


async def health_until(http: str, wanted: dict[str, Any]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await health(http) != wanted:
            await asyncio.sleep(0.05)


def pid_of(parent: int, name: str) -> int:
    for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        if f"decode.name={name}" in Path(f"/proc/{pid}/cmdline").read_text():
            return int(pid)
    raise AssertionError(f"{name} does not run")


@pytest.mark.parametrize("where", ["pipe that nobody reads", "closed pipe", "full disk"])
async def test_a_worker_that_dies_is_started_again_and_answers_go_on_though_no_line_can_be_shown(where: str) -> None:
    body = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
    async with up(where) as (process, http), httpx.AsyncClient(timeout=PATIENCE_SECONDS) as client:
        await health_until(http, WHOLE)
        for _ in range(2):
            before = pid_of(process.pid, "decode-0")
            os.kill(before, signal.SIGKILL)
            answer = await client.post(f"http://{http}/v1/completions", json=body)
            assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] > 0
            async with asyncio.timeout(PATIENCE_SECONDS):
                while str(before) in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
                    await asyncio.sleep(0.05)
            await health_until(http, WHOLE)
            assert pid_of(process.pid, "decode-0") != before
        assert process.returncode is None
    assert process.returncode == 0
