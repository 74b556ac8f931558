"""Fuzz target of the handshakes at decode's pool: shared memory and RDMA read a greeting and admit or refuse.

A writer is admitted only if it shows the token of a handle that is not used yet, its own incarnation and the
receiver's, and describes pages that fit. A token serves once. TCP's greeting is fuzzed in
tests/fuzz/kv_frames.py; NCCL's is read by the same parser."""

import asyncio
import atexit
import os
import socket
import tempfile
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, cast

from kvtransfer.frames import GREETING_BYTES, WELCOME_BYTES, Greeting, Malformed, PoolHandle, Welcome
from kvtransfer.mapped import MappedReceiver
from kvtransfer.pool import SharedPool
from kvtransfer.rdma import RdmaOptions, RdmaReceiver
from mesh.messages.page_fit import transport_obstacle
from tests.fuzz.case_loop import CaseLoop, case_loop
from tests.fuzz.cases import ODD_INTS, Wrong, chance, mutated
from tests.fuzz.drawn_shapes import OURS, drawn_shape

RECEIVER = 0xB0B
WRITERS = (0xA11CE, 0xA11CF, 7)
_POOLS: list[SharedPool] = []
_MAPPED: list[MappedReceiver] = []


def kv_greetings(rng: Random) -> bool:
    """A case reaches deep states when a writer is admitted."""
    with case_loop() as loop:
        return _mapped(rng, loop) if chance(rng, 0.5) else _streamed(rng, loop)


def _greeting(rng: Random, handles: dict[int, PoolHandle]) -> bytes:
    """Mostly the right one; else one with a wrong part, or broken bytes."""
    writer = rng.choice(WRITERS)
    shape = OURS if chance(rng, 0.7) else drawn_shape(rng)
    right = Greeting(handles[writer].token, writer, RECEIVER, shape)
    match rng.randrange(8):
        case 0:
            return replace(right, token=rng.choice((rng.randbytes(16), bytes(16), handles[WRITERS[0]].token))).pack()
        case 1:
            return replace(right, writer=rng.choice((*WRITERS, *ODD_INTS))).pack()
        case 2:
            return replace(right, receiver=rng.choice(ODD_INTS)).pack()
        case 3 | 4:
            return mutated(rng, right.pack())
        case _:
            return right.pack()


def _judge(raw: bytes, admitted: bool, unused: dict[int, bytes], transport: str) -> None:
    """`unused`: the tokens of handles that no writer has used, by writer."""
    try:
        greeting = Greeting.unpack(raw)
    except Malformed:
        greeting = None
    right = (
        greeting is not None
        and greeting.receiver == RECEIVER
        and unused.get(greeting.writer) == greeting.token
        and not transport_obstacle(transport, greeting.shape, OURS)
    )
    if admitted != right:
        raise Wrong(
            f"{transport}: a {'wrong' if admitted else 'right'} greeting was {'' if admitted else 'not '}admitted"
        )


def _mapped(rng: Random, loop: CaseLoop) -> bool:
    receiver = _mapped_receiver(loop)
    receiver._random = cast(Any, rng)
    handles = {writer: PoolHandle.unpack(receiver.handle(writer)) for writer in WRITERS}
    unused, admitted = {writer: handle.token for writer, handle in handles.items()}, 0
    for _ in range(rng.randint(1, 3)):
        raw = _greeting(rng, handles)
        got = _dial(loop, receiver, raw)
        _judge(raw, got, unused, "shm")
        if got:
            admitted += 1
            del unused[Greeting.unpack(raw).writer]
    for peer in receiver._writers.values():
        for connection in list(peer.sockets):
            receiver._hang_up(peer, connection)
        if peer.process is not None:
            peer.process.close()
    receiver._writers.clear()
    return admitted > 0


def _mapped_receiver(loop: CaseLoop) -> MappedReceiver:
    """One receiver for all cases of this process, on this case's loop: its folder and its socket cost the most."""
    if not _MAPPED:
        folder = tempfile.TemporaryDirectory(prefix="baton-")
        atexit.register(folder.cleanup)
        options: Any = {"random": Random(1), "may_kill": False, "handshake_seconds": 5.0}
        _MAPPED.append(MappedReceiver("shm", b"SHM1", _pool(), RECEIVER, folder=Path(folder.name), **options))
    receiver = _MAPPED[0]
    receiver._loop = loop
    loop.add_reader(receiver._listener, receiver._accept)
    return receiver


def _dial(loop: CaseLoop, receiver: MappedReceiver, raw: bytes) -> bool:
    """Send a greeting to the receiver's socket, and say whether the welcome brings the pool's descriptor."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as mine:
        mine.connect(str(receiver._path))
        mine.send(raw)
        loop.readable(receiver._listener.fileno())
        for connection in list(receiver._waiting):
            loop.readable(connection.fileno())
        mine.setblocking(False)
        try:
            answer, descriptors, _, _ = socket.recv_fds(mine, WELCOME_BYTES + 1, 1)
        except (BlockingIOError, ConnectionResetError):
            return False
        for descriptor in descriptors:
            os.close(descriptor)
        if descriptors and not Welcome.unpack(answer).accepted:
            raise Wrong("a writer that is not accepted got the pool's descriptor")
        return bool(descriptors)


class _Stream:
    """The writing half of a connection."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data


def _streamed(rng: Random, loop: CaseLoop) -> bool:
    """RDMA reads the greeting from a stream of asyncio."""
    receiver = RdmaReceiver(_pool(), RECEIVER, cast(Any, rng), RdmaOptions())
    receiver._address = "127.0.0.1:1"
    handles = {writer: PoolHandle.unpack(receiver.handle(writer)) for writer in WRITERS}
    unused = {writer: handle.token for writer, handle in handles.items()}
    deep = False
    for _ in range(rng.randint(1, 3)):
        raw, stream = _greeting(rng, handles), _Stream()
        reader = asyncio.StreamReader(loop=loop)
        reader.feed_data(raw)
        reader.feed_eof()
        admitted = loop.run(_admitted(receiver, reader, stream))
        _judge(raw[:GREETING_BYTES], admitted, unused, "rdma")
        if admitted:
            del unused[Greeting.unpack(raw[:GREETING_BYTES]).writer]
        deep = deep or admitted
    return deep


async def _admitted(receiver: RdmaReceiver, reader: asyncio.StreamReader, stream: Any) -> bool:
    try:
        return await receiver._admitted(reader, stream) is not None
    except (Malformed, asyncio.IncompleteReadError):
        return False


def _pool() -> SharedPool:
    if not _POOLS:
        _POOLS.append(SharedPool(OURS, 4))
    return _POOLS[0]
