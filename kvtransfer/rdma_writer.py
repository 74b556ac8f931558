"""RDMA, prefill's half: its device writes spans from the source pages straight into decode's.

One thread per writer sends, in the order of the calls, and computes the checksums while the device works. A write
returns when the receiver's device has acknowledged all its pieces: the source may change, and decode compares checksums
before it reads. No notification is sent: decode would have to look for it all the time, and Written says the same.

A write that cannot end so is given up: the writer's own agent goes first, so that its device reads and sends no more,
then the receiver destroys the key, and only then the write raises. So the end of a write, in whatever way, means that
none is in flight."""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import numpy as np

from kvtransfer.address import host_and_port
from kvtransfer.blocking import finish, finish_or_discard
from kvtransfer.frames import Malformed, PoolHandle
from kvtransfer.nixl_agent import Agent, AgentError, RdmaFabric
from kvtransfer.pool import SharedPool, span_table
from kvtransfer.rdma_frames import (
    JOINED,
    PROBE_BYTES,
    READY,
    RdmaOffer,
    RegionPages,
    joined_runs,
    page_regions,
    read_offer,
)
from kvtransfer.rdma_gate import Probe, probe_bytes
from kvtransfer.side_channel import dial, greet, hung_up, take
from kvtransfer.transfer import Span, TransferError

log = logging.getLogger("baton.kvtransfer")

KIND = b"RDM1"
_LOOK_SECONDS = (0.00002, 0.001)  # shortest and longest pause between two looks at a write
_ANSWER_SECONDS = 10.0  # how long the receiver may take to destroy a key


Ended = Callable[[float], bool]  # waits so many seconds, or until the connection has ended: has it?


class RdmaEnd:
    """The writer's agent and what it knows of the two pools. Only the writer's thread uses it."""

    def __init__(self, agent: Agent, source: SharedPool, offer: RdmaOffer, clock: Callable[[], float]) -> None:
        self._agent, self._source, self._clock = agent, source, clock
        shape = source.shape
        self._starts = np.array([shape.before(layer) for layer in range(shape.layers + 1)], np.int64)
        self._own = page_regions(source.address, source.pages, shape.page_bytes)
        self._from = RegionPages.of(self._own, shape.page_bytes)
        self._to = RegionPages.of(offer.regions, shape.page_bytes)
        self._probe = Probe()

    def meet(self, offer: RdmaOffer, probe: bytes, ended: Ended, until: float) -> None:
        """Connect, and write a little beside the receiver's pool."""
        self._probe.buffer[:] = probe
        memory = [(at.address, at.pages * self._source.shape.page_bytes) for at in self._own]
        self._agent.register([*memory, (self._probe.address, PROBE_BYTES)])
        self._agent.join(offer.metadata)
        places = [np.array([value], np.int64) for value in (self._probe.address, offer.probe, PROBE_BYTES)]
        self._wait(self._agent.write(*places), ended, until)

    def send(self, spans: Sequence[Span], ended: Ended, seconds: float) -> tuple[int, ...]:
        """Write the spans and return their checksums. IndexError when one leaves its pool."""
        page, target, first, layers = span_table(spans, self._source, self._to.pages).T
        offset = self._starts[first]
        regions = np.stack([self._from.regions(page), self._to.regions(target)])
        apart = (regions[:, 1:] != regions[:, :-1]).any(axis=0)
        source, sizes = self._from.addresses(page) + offset, self._starts[first + layers] - offset
        pieces = joined_runs(source, self._to.addresses(target) + offset, sizes, apart)
        begun = self._clock()
        transfer = self._agent.write(*pieces)
        sums = tuple(self._source.checksum(span.source, span.first_layer, span.layers) for span in spans)
        self._wait(transfer, ended, begun + seconds)
        return sums

    def _wait(self, transfer: int, ended: Ended, until: float) -> None:
        """Returns when all bytes are there. Looks from time to time: a thread that spins takes a core from prefill."""
        pause, longest = _LOOK_SECONDS
        while not self._agent.done(transfer):
            if ended(pause):
                raise AgentError("the connection ended in the middle of a write")
            if self._clock() > until:
                raise AgentError("a write did not end in time")
            pause = min(1.5 * pause, longest)

    def destroy(self) -> None:
        self._agent.destroy()


class RdmaWriter:
    name = "rdma"
    one_sided = True

    def __init__(
        self, connection: socket.socket, end: RdmaEnd, source: SharedPool, sender: ThreadPoolExecutor, seconds: float
    ) -> None:
        self.bytes_written, self.shape = 0, source.shape
        self._connection, self._end, self._source, self._sender = connection, end, source, sender
        self._seconds = seconds
        self._broken, self._over = "", Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(connection, self._lost, "rdma: the receiver closed the connection")
        self._closed = False

    async def write(self, ticket: bytes, spans: Sequence[Span], round: int) -> tuple[int, ...]:
        self._check()
        sums = await finish(self._sender, lambda: self._send(spans))
        self._check()  # the receiver ended meanwhile: the bytes went nowhere
        self.bytes_written += sum(self._source.shape.place(span.first_layer, span.layers)[1] for span in spans)
        return sums

    def close(self) -> None:
        """Idempotent. The agent and the connection go after a write that still runs."""
        self._lost("this writer was closed")
        if not self._closed:
            self._closed = True
            self._sender.submit(self._leave)
            self._sender.shutdown(wait=False)

    def _check(self) -> None:
        if self._broken:
            raise TransferError(self._broken)

    def _lost(self, reason: str) -> None:
        if not self._broken:
            self._broken = reason
            self._over.set()
            self._loop.remove_reader(self._connection)

    # ---- in the sender's thread

    def _send(self, spans: Sequence[Span]) -> tuple[int, ...]:
        self._check()
        if not spans:
            return ()
        try:
            return self._end.send(spans, self._over.wait, self._seconds)
        except AgentError as error:
            why = f"rdma: {error}"
        self._give_up()
        self._loop.call_soon_threadsafe(self._lost, why)
        raise TransferError(why)

    def _give_up(self) -> None:
        """End both ends of a write that may still be in flight."""
        self._destroy()
        try:
            self._connection.shutdown(socket.SHUT_WR)
        except OSError:
            return  # the receiver has hung up: its key is gone
        if not hung_up(self._connection, _ANSWER_SECONDS):
            log.warning("rdma: decode did not confirm within %g s that a write is over", _ANSWER_SECONDS)

    def _leave(self) -> None:
        self._destroy()
        self._connection.close()

    def _destroy(self) -> None:
        try:
            self._end.destroy()
        except AgentError as error:
            log.error("rdma: %s", error)


async def connect(
    raw: bytes,
    pool: SharedPool,
    incarnation: int,
    *,
    fabric: RdmaFabric,
    seconds: float,
    join_seconds: float,
    write_seconds: float,
) -> RdmaWriter:
    clock = asyncio.get_running_loop().time
    times = (seconds, join_seconds)
    sender = ThreadPoolExecutor(1, thread_name_prefix="baton-rdma")
    try:
        connection, end = await finish_or_discard(
            sender, lambda: _join(raw, pool, incarnation, fabric=fabric, times=times, clock=clock), _discard
        )
    except (OSError, ValueError, ImportError) as error:
        sender.shutdown(wait=False)
        raise TransferError(f"rdma: the receiver cannot be reached: {error}") from error
    except BaseException:
        sender.shutdown(wait=False)
        raise
    return RdmaWriter(connection, end, pool, sender, write_seconds)


def _join(
    raw: bytes,
    pool: SharedPool,
    incarnation: int,
    *,
    fabric: RdmaFabric,
    times: tuple[float, float],
    clock: Callable[[], float],
) -> tuple[socket.socket, RdmaEnd]:
    """Runs in the sender's thread and blocks. `times`: how long a step may take until the receiver has admitted this
    writer, and from then on."""
    seconds, join_seconds = times
    handle = PoolHandle.unpack(raw)
    if handle.kind != KIND:
        raise Malformed(f"a handle of {handle.kind!r}, not of rdma")
    connection = dial(host_and_port(handle.address), seconds)
    end: RdmaEnd | None = None
    try:
        welcome = greet(connection, handle, incarnation, pool.shape, name="rdma")
        connection.settimeout(join_seconds)
        offer = read_offer(lambda count: take(connection, count), welcome.pages, pool.shape.page_bytes)
        end = RdmaEnd(Agent(f"prefill-{incarnation:x}", fabric), pool, offer, clock)
        probe = probe_bytes(handle.token, incarnation)
        end.meet(offer, probe, lambda pause: hung_up(connection, pause), clock() + join_seconds)
        connection.sendall(JOINED)
        if take(connection, len(READY)) != READY:
            raise Malformed("the receiver does not find what we wrote")
        connection.setblocking(False)
        return connection, end
    except BaseException:
        connection.close()
        if end is not None:
            end.destroy()
        raise


def _discard(joined: tuple[socket.socket, RdmaEnd]) -> None:
    connection, end = joined
    end.destroy()
    connection.close()
