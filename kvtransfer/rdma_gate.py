"""One writer's way into decode's pool over RDMA: an agent that has registered the pool for this writer alone.

Its thread makes the agent, lets it make progress, and destroys it. Over a real device the writes need no progress here
once the two are connected; UCX's own upkeep does, now and then."""

import asyncio
import hmac
import logging
import mmap
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import numpy as np

from kvtransfer.blocking import finish, settled
from kvtransfer.frames import Greeting
from kvtransfer.nixl_agent import Agent, AgentError, RdmaFabric
from kvtransfer.pool import SharedPool
from kvtransfer.rdma_frames import PROBE_BYTES, RdmaOffer, page_regions

log = logging.getLogger("baton.kvtransfer")

_BUSY_SECONDS, _IDLE_SECONDS = 0.001, 1.0  # between two looks while bytes may need progress, and later


class Probe:
    """A little memory beside the pool: the writer writes it first, which proves that addresses and key are right."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)  # shared, so that no fork copies it away
        self.buffer = memoryview(self._memory)[:PROBE_BYTES]
        self.address = int(np.frombuffer(self._memory, np.uint8).ctypes.data)


def probe_bytes(token: bytes, writer: int) -> bytes:
    """The bytes that the writer of this incarnation writes into the probe."""
    return (token + writer.to_bytes(8, "little")).ljust(PROBE_BYTES, b"\0")


class Gate:
    def __init__(self, name: str, pool: SharedPool, fabric: RdmaFabric, talk: "asyncio.Task[None]") -> None:
        self.gone = asyncio.Event()  # set when the key is destroyed
        self.talk = talk
        self._name, self._pool, self._fabric = name, pool, fabric
        self._probe = Probe()
        self._agent: Agent | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="baton-rdma")
        self._stop, self._look_seconds, self._ending = Event(), _BUSY_SECONDS, False

    async def open(self) -> RdmaOffer:
        """Register the pool, and let the writer connect from now on."""
        offer = await finish(self._thread, self._register)
        self._thread.submit(self._keep_going)
        return offer

    def probed_by(self, greeting: Greeting) -> bool:
        return hmac.compare_digest(bytes(self._probe.buffer), probe_bytes(greeting.token, greeting.writer))

    def rest(self) -> None:
        """The writer is connected: from now on its device does the work, where there is one."""
        if not self._fabric.imitated:
            self._look_seconds = _IDLE_SECONDS

    def end(self) -> None:
        """Begin to destroy the key; idempotent. `gone` is set when it is destroyed."""
        if not self._ending:
            self._ending = True
            self.talk.cancel()

    async def destroyed(self) -> bool:
        """Destroy the key, however often the caller is cancelled meanwhile. False: NIXL has not given it up."""
        self._ending = True
        self._stop.set()
        work = asyncio.wrap_future(self._thread.submit(self._destroy))
        await settled([work])
        self._thread.shutdown(wait=False)
        return work.result()

    # ---- in the gate's thread

    def _register(self) -> RdmaOffer:
        page_bytes = self._pool.shape.page_bytes
        regions = page_regions(self._pool.address, self._pool.pages, page_bytes)
        self._agent = Agent(self._name, self._fabric)
        memory = [(at.address, at.pages * page_bytes) for at in regions]
        self._agent.register([*memory, (self._probe.address, PROBE_BYTES)])
        return RdmaOffer(regions, self._probe.address, self._agent.metadata())

    def _keep_going(self) -> None:
        """Make progress until the gate ends, or its process does."""
        while not self._stop.wait(self._look_seconds) and not self.talk.get_loop().is_closed():
            try:
                if self._agent is not None:
                    self._agent.progress()
            except AgentError as error:
                log.warning("rdma: %s", error)
                self.talk.get_loop().call_soon_threadsafe(self.end)
                return

    def _destroy(self) -> bool:
        try:
            if self._agent is not None:
                self._agent.destroy()
        except AgentError as error:
            log.error("rdma: %s; the writer's pages stay quarantined until this worker is restarted", error)
            return False
        return True
