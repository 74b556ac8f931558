"""Both transports between two real processes, one of which is killed, stopped or continued in mid-push."""

import asyncio
import os
import runpy
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from kvtransfer.pool import SharedPool
from kvtransfer.transfer import Arrived, Receiver, Span, TransferError
from tests.harness.waiting import within


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A socket's path has at most 107 bytes, and pytest's own folders can be longer."""
    with tempfile.TemporaryDirectory(prefix="baton-") as folder:
        yield Path(folder)


pytestmark = pytest.mark.mesh
PATIENCE_SECONDS = 60.0  # a guard against hanging: no test depends on how fast the machine is

PROGRAM = Path(__file__).with_name("transport_peer.py")
peer = runpy.run_path(str(PROGRAM), run_name="peer")
SHAPE, PAGES, TICKET, WRITER = peer["SHAPE"], peer["PAGES"], peer["TICKET"], peer["WRITER"]


@asynccontextmanager
async def process(role, name, folder):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    child = await asyncio.create_subprocess_exec(
        sys.executable, PROGRAM, role, name, folder, stdin=-1, stdout=-1, env=environment
    )
    try:
        yield child
    finally:
        if child.returncode is None:
            child.kill()
        await child.communicate()


@dataclass
class Pushed:
    """A writer in its own process that pushes for ever, and the pool of this process."""

    child: asyncio.subprocess.Process
    receiver: Receiver
    pool: SharedPool
    arrived: list[Arrived] = field(default_factory=list)

    async def changes(self, seconds=0.3):
        """True as soon as a page changes within this time. The event loop runs meanwhile and receives from sockets."""
        before = bytes(self.pool.buffer)
        for _ in range(int(seconds / 0.02)):
            await asyncio.sleep(0.02)
            if self.pool.buffer != before:
                return True
        return False

    async def first_pass(self):
        """Returns when every byte of the pool was written once."""
        await within(PATIENCE_SECONDS, lambda: np.frombuffer(self.pool.buffer, np.uint8).all())


@asynccontextmanager
async def pushed(name, folder):
    pool = SharedPool(SHAPE, PAGES)
    receiver = await peer["transport"](name, folder).receive(pool, peer["RECEIVER"])
    try:
        async with process("write", name, folder) as child:
            state = Pushed(child, receiver, pool)
            receiver.open(TICKET, {page: page for page in range(PAGES)}, state.arrived.append)
            child.stdin.write(receiver.handle(WRITER).hex().encode() + b"\n")
            assert await asyncio.wait_for(child.stdout.readline(), PATIENCE_SECONDS) == b"pushing\n"
            assert await state.changes(PATIENCE_SECONDS)
            yield state
    finally:
        await receiver.aclose()
        pool.close()


@pytest.mark.parametrize("name", ["shm", "tcp"])
async def test_a_writer_killed_in_mid_push_writes_no_more_and_is_known_to_be_dead(name, short_path):
    async with pushed(name, str(short_path)) as state:
        await state.first_pass()  # so that the writer is in the middle of another one
        state.child.kill()
        assert await state.receiver.silent(WRITER, PATIENCE_SECONDS)
        state.receiver.close(TICKET)
        assert not await state.changes()
        assert await state.child.wait() == -signal.SIGKILL
        assert await state.receiver.silent(WRITER, 0)


async def test_death_is_known_by_pidfd_long_before_the_time_is_up(short_path):
    async with pushed("shm", str(short_path)) as state:
        assert not await state.receiver.silent(WRITER, 0)
        waiting = asyncio.ensure_future(state.receiver.silent(WRITER, 10 * PATIENCE_SECONDS))
        await asyncio.sleep(0.05)
        state.child.kill()
        assert await asyncio.wait_for(waiting, PATIENCE_SECONDS)


async def test_a_stopped_writer_is_not_silent_and_writes_late_once_it_goes_on(short_path):
    async with pushed("shm", str(short_path)) as state:
        state.child.send_signal(signal.SIGSTOP)
        await asyncio.sleep(0.1)
        assert not await state.changes()
        assert not await state.receiver.silent(WRITER, 0.3)
        state.receiver.close(TICKET)
        state.child.send_signal(signal.SIGCONT)
        assert await state.changes(PATIENCE_SECONDS), "the late write is what quarantine is for"
        assert not await state.receiver.silent(WRITER, 0)


async def test_a_stopped_writer_can_be_killed_and_then_is_silent(short_path):
    async with pushed("shm", str(short_path)) as state:
        state.child.send_signal(signal.SIGSTOP)
        await asyncio.sleep(0.05)
        assert not await state.receiver.silent(WRITER, 0.1)
        assert state.receiver.kill(WRITER)
        assert await state.receiver.silent(WRITER, PATIENCE_SECONDS)
        assert await state.child.wait() == -signal.SIGKILL
        assert not await state.changes()


async def test_a_stopped_tcp_writer_that_goes_on_changes_no_page_of_an_ended_landing(short_path):
    async with pushed("tcp", str(short_path)) as state:
        state.child.send_signal(signal.SIGSTOP)
        await state.changes()
        state.receiver.close(TICKET)
        state.child.send_signal(signal.SIGCONT)
        discarded = state.receiver.landings.discarded_bytes
        before = bytes(state.pool.buffer)
        async with asyncio.timeout(PATIENCE_SECONDS):  # until it goes on
            while state.receiver.landings.discarded_bytes == discarded:
                await asyncio.sleep(0.02)
        assert state.pool.buffer == before


@pytest.mark.parametrize("name", ["shm", "tcp"])
async def test_a_writer_learns_that_its_receiver_was_killed(name, short_path):
    async with process("receive", name, str(short_path)) as child:
        handle = bytes.fromhex((await asyncio.wait_for(child.stdout.readline(), PATIENCE_SECONDS)).decode())
        pool = SharedPool(SHAPE, PAGES)
        writer = await peer["transport"](name, str(short_path)).connect(handle, pool, WRITER)
        spans = [Span(page, page, page, 0, SHAPE.layers) for page in range(PAGES)]
        await writer.write(TICKET, spans, 0)
        child.kill()
        with pytest.raises(TransferError):
            async with asyncio.timeout(PATIENCE_SECONDS):
                while True:
                    await writer.write(TICKET, spans, 0)
                    await asyncio.sleep(0)
        writer.close()
        pool.close()
        with pytest.raises(TransferError):
            await peer["transport"](name, str(short_path)).connect(handle, pool, WRITER)
