"""Shared memory's own promises: who gets the descriptor, what proves a death, and what is left behind."""

import asyncio
import os
import random
import socket
import stat

import pytest

from kvtransfer.frames import WELCOME_BYTES, Greeting, PoolHandle
from kvtransfer.mapped_folder import make_folder, remove_folder, sweep
from kvtransfer.peer import Credentials, stranger
from kvtransfer.shm import SharedMemory
from kvtransfer.transfer import Span, TransferError

TICKET = bytes(range(32))
SPAN = Span(0, 1, 2, 0, 6)


@pytest.fixture
def shm(tmp_path):
    return SharedMemory(random.SystemRandom(), folder=tmp_path)


async def dial(handle, message=None):
    """A raw socket to the receiver, and its answer."""
    loop = asyncio.get_running_loop()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.setblocking(False)
    connection.connect(PoolHandle.unpack(handle).address)
    if message is not None:
        connection.send(message)
    try:
        return await asyncio.wait_for(loop.sock_recv(connection, 1000), 30)
    finally:
        connection.close()


def hello(pair, raw, writer):
    handle = PoolHandle.unpack(raw)
    return Greeting(handle.token, writer, handle.receiver, pair.target.shape).pack()


async def test_the_socket_lies_in_a_folder_of_our_own(shm, new_pair, tmp_path):
    async with new_pair(shm):
        (folder,) = tmp_path.iterdir()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert len(folder.name.rpartition("-")[2]) == 24
    assert list(tmp_path.iterdir()) == []


async def test_nothing_is_put_into_dev_shm(shm, new_pair):
    before = set(os.listdir("/dev/shm"))
    async with new_pair(shm) as pair:
        await pair.writer.write(TICKET, [SPAN], 0)
        assert set(os.listdir("/dev/shm")) <= before


async def test_a_handle_opens_one_connection(shm, new_pair):
    async with new_pair(shm) as pair:
        handle = pair.receiver.handle(7)
        (await shm.connect(handle, pair.source, 7)).close()
        with pytest.raises(TransferError):
            await shm.connect(handle, pair.source, 7)
        (await shm.connect(pair.receiver.handle(7), pair.source, 7)).close()


async def test_a_handle_that_was_not_used_opens_nothing_once_its_writer_was_said_to_be_silent(shm, new_pair):
    async with new_pair(shm) as pair:
        handle = pair.receiver.handle(7)
        assert await pair.receiver.silent(7, 0)
        with pytest.raises(TransferError):
            await shm.connect(handle, pair.source, 7)
        assert pair.receiver.refused["token"] == 1


async def test_a_writer_nobody_has_heard_of_is_silent(shm, new_pair):
    async with new_pair(shm) as pair:
        assert await pair.receiver.silent(12345, 0)


async def test_a_closed_socket_is_no_proof(shm, new_pair):
    """The writer closed its session; its process lives and could still hold the mapping."""
    async with new_pair(shm) as pair:
        pair.writer.close()
        await asyncio.sleep(0.05)
        assert not await pair.receiver.silent(0xA11CE, 0.05)


@pytest.mark.parametrize("message", [b"", b"x", b"BHEL" + bytes(120), b"z" * 5000], ids=len)
async def test_a_greeting_of_something_else_is_refused(shm, new_pair, message):
    async with new_pair(shm) as pair:
        assert await dial(pair.receiver.handle(7), message) == b""
        assert pair.receiver.refused["malformed"] == (1 if message else 0)


async def test_whoever_does_not_greet_in_time_is_cut_off(tmp_path, new_pair):
    async with new_pair(SharedMemory(random.SystemRandom(), folder=tmp_path, handshake_seconds=1.0)) as pair:
        assert await dial(pair.receiver.handle(7)) == b""
        assert pair.receiver.refused == {"late": 1}


async def test_processes_that_say_nothing_delay_no_writer(tmp_path, new_pair):
    shm = SharedMemory(random.SystemRandom(), folder=tmp_path, handshake_seconds=600.0)
    async with new_pair(shm) as pair:
        raw, silent = pair.receiver.handle(7), list[socket.socket]()
        for count in range(1, 71):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            silent.append(connection)
            connection.connect(PoolHandle.unpack(raw).address)
            await pair.until(lambda count=count: len(pair.receiver._waiting) + pair.receiver.refused["crowd"] == count)
        assert len(await dial(raw, hello(pair, raw, 7))) == WELCOME_BYTES
        assert pair.receiver.refused == {"crowd": 7}
        for connection in silent:
            connection.close()


async def test_an_incarnation_is_one_process(shm, new_pair):
    """Another process that shows a good token of a known incarnation gets nothing."""
    async with new_pair(shm) as pair:
        raw = pair.receiver.handle(0xA11CE)
        address = PoolHandle.unpack(raw).address
        code = (
            "import socket,sys; s=socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect(sys.argv[1]);"
            "s.send(bytes.fromhex(sys.argv[2])); sys.stdout.write(str(len(s.recv(1000))))"
        )
        process = await asyncio.create_subprocess_exec(
            "python3", "-c", code, address, hello(pair, raw, 0xA11CE).hex(), stdout=asyncio.subprocess.PIPE
        )
        out, _ = await process.communicate()
        assert out == b"0" and pair.receiver.refused == {"process": 1}


async def test_killing_can_be_forbidden(tmp_path, new_pair):
    async with new_pair(SharedMemory(random.SystemRandom(), folder=tmp_path, may_kill=False)) as pair:
        assert not pair.receiver.kill(0xA11CE)  # that is this very process: the test lives
        assert not pair.receiver.kill(7)


async def test_a_connection_that_is_cancelled_leaves_nothing_open(shm, new_pair):
    async with new_pair(shm) as pair:
        count = len(os.listdir("/proc/self/fd"))
        for _ in range(10):
            task = asyncio.ensure_future(shm.connect(pair.receiver.handle(7), pair.source, 7))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await pair.until(lambda: len(os.listdir("/proc/self/fd")) <= count + 1)  # the pidfd of writer 7


def test_another_user_is_a_stranger():
    assert stranger(Credentials(pid=10, uid=1000), 1000) == ""
    assert "1001" in stranger(Credentials(pid=10, uid=1001), 1000)
    assert "0" in stranger(Credentials(pid=10, uid=0), 1000)


def test_a_process_we_cannot_see_is_a_stranger():
    assert "namespace" in stranger(Credentials(pid=0, uid=1000), 1000)


def test_the_next_receiver_takes_away_what_a_killed_one_left(tmp_path):
    dead, listener = make_folder(tmp_path, random.SystemRandom())
    listener.close()
    alive, listening = make_folder(tmp_path, random.SystemRandom())
    assert not dead.parent.exists()
    sweep(tmp_path)
    assert alive.exists()
    listening.close()
    remove_folder(alive)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_too_deep_for_a_socket_is_an_error_that_says_so(tmp_path):
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    with pytest.raises(OSError, match="shorter folder"):
        make_folder(deep, random.SystemRandom())


def test_it_says_why_it_is_not_available(tmp_path):
    assert SharedMemory(random.SystemRandom(), folder=tmp_path).available() == ""
    assert "TMPDIR" in SharedMemory(random.SystemRandom(), folder=tmp_path / "missing").available()
