"""Processes on one event loop whose time is virtual: each has a clock of its own, can be frozen and can be killed.

A task, a timer or a callback belongs to the node in whose context it was made. While a node is frozen nothing of it
runs, its timers included; nothing of a dead node ever runs again, not even its `finally`. Timers fire up to a
nanosecond early, as those of a real loop do."""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from random import Random
from typing import Any, TypeVar

from tests.sim.loop import Stuck

T = TypeVar("T")
NODE: ContextVar["SimNode | None"] = ContextVar("node", default=None)
RESOLUTION_SECONDS = 1e-9


class SimNode:
    """One process: its context, its clock, and whether it runs."""

    def __init__(self, name: str, *, rate: float = 1.0, offset: float = 0.0) -> None:
        self.name = name
        self.dead = False
        self.after: Callable[[], None] | None = None  # called after each of its events
        self._rate, self._offset = rate, offset
        self._context = Context()
        self._context.run(NODE.set, self)
        self.parked: list[asyncio.Handle] | None = None  # what became ready while it is frozen; None: it runs
        self.buried = list[asyncio.Handle]()  # what became ready after its death

    def context(self) -> Context:
        """A context for a task or callback of this node."""
        return self._context.copy()

    def run(self, call: Callable[..., T], *arguments: Any) -> T:
        """Call something as this node, now."""
        return self.context().run(call, *arguments)

    def spawn(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        return self.run(asyncio.ensure_future, work)

    def clock(self, seconds: float) -> float:
        """The time that its clock shows at this time of the world."""
        return self._offset + self._rate * seconds

    def world(self, clock: float) -> float:
        return (clock - self._offset) / self._rate

    @property
    def frozen(self) -> bool:
        return self.parked is not None

    def freeze(self) -> None:
        if self.parked is None:
            self.parked = []

    def thaw(self) -> None:
        parked, self.parked = self.parked, None
        loop = asyncio.get_running_loop()
        assert isinstance(loop, NodeLoop)
        loop.resume(parked or [])

    def holds(self, handle: asyncio.Handle) -> bool:
        """Whether this event of the node must not run now."""
        if self.dead:
            self.buried.append(handle)
            return True
        if self.parked is not None:
            self.parked.append(handle)
            return True
        return False


class NodeLoop(asyncio.SelectorEventLoop):
    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self, random: Random) -> None:
        super().__init__()
        self._world, self._random = 0.0, random
        self._tasks: list[asyncio.Task[Any]] = []  # kept, so that those of dead nodes do not unwind
        self.nodes: list[SimNode] = []
        self.errors: list[str] = []  # exceptions that no task and no callback has caught
        self.set_task_factory(self._make)
        self.set_exception_handler(self._failed)

    def time(self) -> float:
        node = NODE.get()
        return self._world if node is None else node.clock(self._world)

    @property
    def world(self) -> float:
        """Seconds since the beginning, by no node's clock."""
        return self._world

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        node = NODE.get()
        return super().call_at(when if node is None else node.world(when), callback, *args, context=context)

    def resume(self, handles: list[asyncio.Handle]) -> None:
        self._ready.extend(handles)

    def _run_once(self) -> None:
        ready, timers = self._ready, self._scheduled
        while timers and timers[0]._cancelled:  # type: ignore[attr-defined]
            heapq.heappop(timers)._scheduled = False  # type: ignore[attr-defined]
        if not ready:
            if not timers:
                raise Stuck("nothing is ready and no timer is left")
            due = timers[0].when() - RESOLUTION_SECONDS * self._random.random()
            self._world = max(self._world, due)
        while timers and timers[0].when() <= self._world + RESOLUTION_SECONDS:
            timer = heapq.heappop(timers)
            timer._scheduled = False  # type: ignore[attr-defined]
            ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:  # type: ignore[attr-defined]
                continue
            node = handle._context.get(NODE)  # type: ignore[attr-defined]
            if node is None:
                handle._run()
            elif not node.holds(handle):
                handle._run()
                if node.after is not None:
                    node.after()

    def _make(self, loop: asyncio.AbstractEventLoop, work: Any, **given: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(work, loop=loop, **given)
        self._tasks.append(task)
        if len(self._tasks) > 2000:
            self._tasks = [each for each in self._tasks if not each.done()]
        return task

    def _failed(self, loop: asyncio.AbstractEventLoop, what: dict[str, Any]) -> None:
        if "exception" in what:
            self.errors.append(f"{what.get('message')}: {what['exception']!r}")

    def unwind(self) -> None:
        """The run is over: every task ends, those of dead nodes too."""
        for node in self.nodes:
            self._ready.extend([*node.buried, *(node.parked or [])])
            node.dead, node.parked, node.after = False, None, None
        tasks = [task for task in self._tasks if not task.done()]
        for task in tasks:
            task.cancel()
        if tasks:
            self.run_until_complete(asyncio.wait(tasks, timeout=5))
        self._tasks.clear()


def run_nodes(main: Callable[[NodeLoop], Coroutine[Any, Any, T]], random: Random) -> T:
    """Run `main` outside all nodes, and then end everything that is left."""
    loop = NodeLoop(random)
    try:
        return loop.run_until_complete(main(loop))
    finally:
        loop.unwind()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
