"""The workers attached to this gateway. A worker exists for the gateway as long as its Attach stream does."""

import asyncio
from collections import deque
from collections.abc import Iterator

from gateway.routing.worker_table import WorkerTable
from gateway.workers.attached import AttachedWorker
from mesh.messages.jobs import Tier

MOST_DRAINED = 1000  # the last ones, which are long gone when they are forgotten
RETURN_SECONDS = 30.0  # for which a class is expected back whose decode worker left in an orderly way


class Workers:
    """Attached workers by incarnation: all, or those of one model."""

    def __init__(
        self, up: dict[int, AttachedWorker] | None = None, left: dict[tuple[str, str], float] | None = None
    ) -> None:
        self._up: dict[int, AttachedWorker] = {} if up is None else up
        self._left: dict[tuple[str, str], float] = {} if left is None else left  # see `returns`
        self._by_model: dict[str, dict[int, AttachedWorker]] = {}
        self._tables: dict[str, WorkerTable] = {}
        self._drained = deque[tuple[int, str]](
            maxlen=MOST_DRAINED
        )  # processes that said they leave; they mean it in a new session

    def add(self, worker: AttachedWorker) -> None:
        if (before := self._up.get(worker.incarnation)) is not None:
            self.remove(before)
        self._up[worker.incarnation] = worker
        worker.draining |= (worker.incarnation, worker.hello.address) in self._drained
        if worker.tier is Tier.DECODE:
            self._left.pop((worker.model, worker.numerics), None)
        self._by_model.setdefault(worker.model, {})[worker.incarnation] = worker
        self.table(worker.model).add(worker)

    def remove(self, worker: AttachedWorker) -> None:
        self._up.pop(worker.incarnation, None)
        self._by_model.get(worker.model, {}).pop(worker.incarnation, None)
        self.table(worker.model).remove(worker)
        if worker.draining:
            self._drained.append((worker.incarnation, worker.hello.address))
        if worker.draining and worker.tier is Tier.DECODE:
            self._left[worker.model, worker.numerics] = asyncio.get_running_loop().time()

    def table(self, model: str) -> WorkerTable:
        """The workers of this model, as the router compares them."""
        if model not in self._tables:
            self._tables[model] = WorkerTable()
        return self._tables[model]

    def of(self, model: str) -> "Workers":
        """The workers of this model, as they are now."""
        return Workers(self._by_model.get(model, {}), self._left)

    def returns(self, model: str, numerics: str) -> bool:
        """Will a decode worker of this class come back? One hangs and may go on; or one drains, or left in an orderly
        way a moment ago: then an upgrade replaces it. One that died may be gone for ever."""
        mine = (each for each in self._up.values() if each.tier is Tier.DECODE and each.numerics == numerics)
        left_seconds = self._left.get((model, numerics))
        just_left = left_seconds is not None and asyncio.get_running_loop().time() - left_seconds <= RETURN_SECONDS
        return just_left or any(each.draining or each.hung for each in mine)

    def get(self, incarnation: int | None) -> AttachedWorker | None:
        return None if incarnation is None else self._up.get(incarnation)

    def tier(self, tier: Tier) -> list[AttachedWorker]:
        """Workers of this tier that take new requests."""
        return [worker for worker in self._up.values() if worker.tier is tier and worker.takes_requests]

    def __iter__(self) -> Iterator[AttachedWorker]:
        return iter(self._up.values())

    def __len__(self) -> int:
        return len(self._up)
