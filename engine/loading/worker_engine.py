"""All that a worker computes with, put together by its process (decode_svc/main.py, prefill_svc/main.py)."""

from dataclasses import dataclass

from engine.adapters.held import HeldAdapters
from engine.model.floor import NO_FLOOR, Floor
from engine.pool.pages import PagePool
from engine.step.constraint import Masker
from engine.step.plan import Runner


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerEngine:
    runner: Runner
    pages: PagePool
    floor: Floor = NO_FLOOR
    masker: Masker | None = None  # None: requests with a grammar are refused
    adapters: HeldAdapters | None = None  # None: requests with an adapter are refused
