"""Pages between GPU pools of any two hosts over NCCL, decode's half.

Two-sided: frames come over a TCP connection, the bytes behind them over a communicator of just these two workers, into
a block beside the pool. When a block is complete, the event loop decides which of its spans an open landing still wants
and scatters those into their pages at once; it drops the others. So not one byte reaches a page after `close`. The end
of the connection aborts the communicator, be it joined or still joining, and with it the thread that waits.
NCCL encrypts nothing: it is for private networks only."""

import asyncio
import hmac
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from random import SystemRandom

import torch

from kvtransfer.address import bare, dialled_address, obstacle
from kvtransfer.blocking import attend, finish
from kvtransfer.cuda_ipc import on_device
from kvtransfer.device_pool import DevicePool, grouped
from kvtransfer.frame_landings import FrameLandings
from kvtransfer.frames import GREETING_BYTES, TOKEN_BYTES, Greeting, Malformed, PoolHandle, Welcome
from kvtransfer.nccl_library import Broken, Communicator, Communicators, Nccl
from kvtransfer.nccl_writer import NcclWriter, connect
from kvtransfer.portions import COUNT_BYTES, Frame, as_spans, portion_bytes, unpack_portion
from kvtransfer.side_channel import notice_silence
from kvtransfer.transfer import Arrived, FrameBegins, Pool, Span, every_frame
from mesh.messages.page_fit import transport_obstacle

log = logging.getLogger("baton.kvtransfer")

KIND = b"NCC1"


class NcclTransport:
    """A `Transport` between any two workers with GPUs. Tokens are secrets: hence the system's random source."""

    name = "nccl"

    def __init__(
        self,
        random: SystemRandom,
        *,
        host: str = "127.0.0.1",
        advertise_host: str = "",
        communicators: Communicators | None = None,
        handshake_seconds: float = 5.0,
    ) -> None:
        self._random, self._host, self._advertise_host = random, host, advertise_host
        self._communicators = communicators or Nccl()
        self._handshake_seconds = handshake_seconds

    def available(self) -> str:
        if reason := obstacle("nccl", self._host, self._advertise_host):
            return reason
        return self._communicators.available()

    async def receive(self, pool: Pool, incarnation: int) -> "NcclReceiver":
        receiver = NcclReceiver(
            on_device(pool),
            incarnation,
            self._random,
            communicators=self._communicators,
            seconds=self._handshake_seconds,
        )
        await receiver.listen(self._host, self._advertise_host)
        return receiver

    async def connect(self, handle: bytes, pool: Pool, incarnation: int) -> NcclWriter:
        seconds = self._handshake_seconds
        return await connect(
            handle, KIND, on_device(pool), incarnation, communicators=self._communicators, seconds=seconds
        )


class NcclReceiver:
    name = "nccl"
    one_sided = False

    def __init__(
        self, pool: DevicePool, incarnation: int, random: SystemRandom, *, communicators: Communicators, seconds: float
    ) -> None:
        self.refused: Counter[str] = Counter()  # connections, by reason
        self.landings = FrameLandings(pool)
        self._pool, self._incarnation, self._random = pool, incarnation, random
        self._communicators, self._seconds = communicators, seconds
        self._tokens: dict[int, bytes] = {}  # by writer incarnation
        self._talks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._address = ""

    async def listen(self, host: str, advertise_host: str) -> None:
        self._server = await asyncio.start_server(self._accepted, bare(host), 0)
        bound = self._server.sockets[0].getsockname()
        self._address = dialled_address(host, advertise_host, bound)

    def handle(self, writer: int) -> bytes:
        token = self._tokens.setdefault(writer, self._random.randbytes(TOKEN_BYTES))
        return PoolHandle(KIND, token, self._incarnation, self._address).pack()

    def open(
        self,
        ticket: bytes,
        pages: dict[int, int],
        arrived: Callable[[Arrived], None],
        begins: FrameBegins = every_frame,
    ) -> None:
        self.landings.open(ticket, pages, arrived, begins)

    def close(self, ticket: bytes) -> None:
        self.landings.close(ticket)

    async def silent(self, writer: int, seconds: float) -> bool:
        return True  # a late write reaches no page

    def kill(self, writer: int) -> bool:
        return False  # it may be on another host

    async def aclose(self) -> None:
        if self._server is not None:
            self._server.close()
        for talk in list(self._talks):
            talk.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    # ---- one writer's connection, from its greeting to its end

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talk = asyncio.ensure_future(self._talk(reader, writer))
        self._talks.add(talk)
        talk.add_done_callback(self._talks.discard)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        notice_silence(writer.get_extra_info("socket"))
        thread = ThreadPoolExecutor(1, thread_name_prefix="baton-nccl")
        try:
            unique = await self._welcome(reader, writer, thread)
            if unique is not None:
                await self._serve(reader, unique, thread)
        except Malformed as error:
            self._refuse("malformed", error)
        except TimeoutError:
            self._refuse("late", f"no greeting, or not joined, within {self._seconds:g} s")
        except (OSError, EOFError) as error:
            self._refuse("gone", error)
        finally:
            thread.shutdown(wait=False)
            writer.close()

    def _refuse(self, reason: str, why: object) -> None:
        self.refused[reason] += 1
        log.warning("nccl: a writer's connection was refused or lost (%s): %s", reason, why)

    async def _welcome(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, thread: ThreadPoolExecutor
    ) -> bytes | None:
        """Answer a writer's greeting; returns the communicator's name, or None when the writer was refused."""
        async with asyncio.timeout(self._seconds):
            greeting = Greeting.unpack(await reader.readexactly(GREETING_BYTES))
        known = hmac.compare_digest(self._tokens.get(greeting.writer, b""), greeting.token)
        if not known or greeting.receiver != self._incarnation:
            self._refuse("token", "its handle is stale, or it has none")
            return None
        accepted = not transport_obstacle("nccl", greeting.shape, self._pool.shape)
        welcome = Welcome(accepted, self._incarnation, self._pool.pages, self._pool.shape)
        writer.write(welcome.pack())
        if not welcome.accepted:
            self._refuse("shape", f"its pages are {greeting.shape}")
            return None
        unique = await finish(thread, self._communicators.unique)
        writer.write(unique)
        return unique

    async def _serve(self, reader: asyncio.StreamReader, unique: bytes, thread: ThreadPoolExecutor) -> None:
        """Join with the writer, then receive portion by portion until the connection or the communicator ends."""
        pair = self._communicators.pair(unique, 0, self._pool.driver.device)

        async def while_there(call: Callable[[], None], seconds: float | None = None) -> None:
            await attend(thread, call, look=lambda: _check_there(reader), end=pair.abort, seconds=seconds)

        try:
            await while_there(pair.join, self._seconds)
            while head := await _head(reader):
                frames = unpack_portion(await reader.readexactly(portion_bytes(head)), self._pool.shape)
                spans = as_spans(frames)
                with self._pool.driver.beside():  # memory that no step's kernel may still be using
                    blocks = [self._pool.blocks.room(group) for group in grouped(spans, self._pool.shape)]
                await while_there(partial(_fill, pair, blocks))
                self._land(frames, spans, blocks)
        finally:
            pair.abort()

    def _land(self, frames: Sequence[Frame], spans: Sequence[Span], blocks: Sequence[torch.Tensor]) -> None:
        """Scatter the wanted spans. Runs on the event loop without a pause, so that no landing ends in between."""
        wanted = [self.landings.begin(frame) for frame in frames]
        targets = [
            replace(span, target=landing.pages[span.index]) if landing is not None else span
            for span, landing in zip(spans, wanted, strict=True)
        ]
        for group, block in zip(grouped(spans, self._pool.shape), blocks, strict=True):
            rows = [row for row, place in enumerate(group.places) if wanted[place] is not None]
            if rows:
                placed = [targets[group.places[row]] for row in rows]
                with self._pool.driver.beside():
                    self._pool.blocks.scatter(placed, [block[rows] if len(rows) < len(block) else block])
        for frame, landing in zip(frames, wanted, strict=True):
            if landing is None or self.landings.wants(frame) is None:
                self.landings.discarded_bytes += frame.length
            else:
                self.landings.complete(frame, landing)


async def _head(reader: asyncio.StreamReader) -> bytes:
    """The first bytes of the next portion; empty when the writer hung up after the last one."""
    try:
        return await reader.readexactly(COUNT_BYTES)
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return b""


def _fill(pair: Communicator, blocks: Sequence[torch.Tensor]) -> None:
    for block in blocks:
        pair.receive(block)


def _check_there(reader: asyncio.StreamReader) -> None:
    if reader.at_eof() or reader.exception() is not None:
        raise Broken("the writer hung up while it was joining, or in the middle of a portion")
