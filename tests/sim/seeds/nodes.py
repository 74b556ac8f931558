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
        self.rate, self.offset = rate, offset
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
        return self.offset + self.rate * seconds

    def world(self, clock: float) -> float:
        return (clock - self.offset) / self.rate

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

    def keep(self, handle: asyncio.Handle) -> None:
        """This event of the node must not run now, or ever."""
        if self.dead or self.parked is None:
            self.buried.append(handle)
        else:
            self.parked.append(handle)


class NodeLoop(asyncio.SelectorEventLoop):
    """Its own timers and its own way through them: a seed has tens of thousands of events, and most of its time goes by
    between them."""

    _ready: deque[asyncio.Handle]
    _stopping: bool

    def __init__(self, random: Random) -> None:
        super().__init__()
        self._world, self._random = 0.0, random
        self._timers: list[tuple[float, asyncio.TimerHandle]] = []  # a heap; times are those of the world
        self._tasks: list[asyncio.Task[Any]] = []  # kept, so that those of dead nodes do not unwind
        self.nodes: list[SimNode] = []
        self.errors: list[str] = []  # exceptions that no task and no callback has caught
        self.set_task_factory(self._make)
        self.set_exception_handler(self._failed)

    def time(self) -> float:
        node = NODE.get()
        return self._world if node is None else node.offset + node.rate * self._world

    @property
    def world(self) -> float:
        """Seconds since the beginning, by no node's clock."""
        return self._world

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        node = NODE.get()
        if node is not None:
            when = node.world(when)
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, timer))
        return timer

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def resume(self, handles: list[asyncio.Handle]) -> None:
        self._ready.extend(handles)

    def _run_once(self) -> None:
        """Run until the loop stops."""
        while True:
            self._due()
            ready = self._ready
            for _ in range(len(ready)):
                handle = ready.popleft()
                if handle._cancelled:  # type: ignore[attr-defined]
                    continue
                context = handle._context  # type: ignore[attr-defined]
                node = context.get(NODE)
                if node is not None and (node.dead or node.parked is not None):
                    node.keep(handle)
                    continue
                try:
                    context.run(handle._callback, *handle._args)  # type: ignore[attr-defined]
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    self.call_exception_handler({"message": f"Exception in {handle!r}", "exception": error})
                if node is not None and node.after is not None:
                    node.after()
            if self._stopping:
                return

    def _due(self) -> None:
        """Callbacks that are due become ready. Without anything ready, time passes until the next timer."""
        ready, timers = self._ready, self._timers
        while timers and timers[0][1]._cancelled:  # type: ignore[attr-defined]
            heapq.heappop(timers)
        if not ready:
            if not timers:
                raise Stuck("nothing is ready and no timer is left")
            self._world = max(self._world, timers[0][0] - RESOLUTION_SECONDS * self._random.random())
        while timers and timers[0][0] <= self._world + RESOLUTION_SECONDS:
            ready.append(heapq.heappop(timers)[1])

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
