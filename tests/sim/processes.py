"""One worker process of a simulated mesh."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from decode_svc.worker import DecodeWorker
from kvtransfer.memory import MemoryPool
from mesh.messages.jobs import Tier
from prefill_svc.worker import PrefillWorker
from tests.sim.model import SimRunner


@dataclass
class SimProcess:
    """One worker process: what runs in it and how it ends."""

    name: str
    tier: Tier
    worker: PrefillWorker | DecodeWorker
    pool: MemoryPool
    incarnation: int
    runner: SimRunner
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    alive: bool = True
    thaw: Callable[[], None] | None = None
