"""Sends what changes to everyone who watches, as server-sent events; a slow reader never holds more than one event.

Each watcher has at most one unsent version of each topic: a newer one replaces it. So the memory of a watcher does not
grow however slowly it reads. Nothing runs while nobody watches."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

PERIOD_SECONDS = 0.25  # between two looks at the topics
KEEPALIVE_SECONDS = 10.0  # a watcher hears something at least so often
MOST_WATCHERS = 32

Topics = Callable[[], dict[str, bytes]]  # topic -> its present content, one line


@dataclass(slots=True, eq=False)
class Watcher:
    news: asyncio.Event = field(default_factory=asyncio.Event)
    sent: dict[str, bytes] = field(default_factory=dict)  # topic -> the content that was sent last
    gone: bool = False

    def leave(self) -> None:
        self.gone = True
        self.news.set()


class Broadcast:
    """`look` returns the topics; `on_watch` is called now and then while somebody watches."""

    def __init__(self, look: Topics, on_watch: Callable[[], None]) -> None:
        self.watchers: set[Watcher] = set()
        self._look, self._on_watch = look, on_watch
        self._now: dict[str, bytes] = {}
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def full(self) -> bool:
        return self._closed or len(self.watchers) >= MOST_WATCHERS

    def join(self) -> Watcher:
        watcher = Watcher()
        self.watchers.add(watcher)
        self._update()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())
        return watcher

    async def events(self, watcher: Watcher) -> AsyncIterator[bytes]:
        """The events of one watcher until it leaves. What it gets next is decided when it asks for it."""
        try:
            while not watcher.gone:
                watcher.news.clear()
                fresh = {topic: data for topic, data in self._now.items() if watcher.sent.get(topic) is not data}
                if fresh:
                    watcher.sent.update(fresh)
                    yield b"".join(b"event: %s\ndata: %s\n\n" % (topic.encode(), data) for topic, data in fresh.items())
                    continue
                try:
                    async with asyncio.timeout(KEEPALIVE_SECONDS):
                        await watcher.news.wait()
                except TimeoutError:
                    yield b": nothing has changed\n\n"
        finally:
            self.watchers.discard(watcher)

    def close(self) -> None:
        """End every watcher's events, so that the server can stop."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
        for watcher in self.watchers:
            watcher.leave()

    async def _run(self) -> None:
        while self.watchers:
            self._on_watch()
            self._update()
            await asyncio.sleep(PERIOD_SECONDS)

    def _update(self) -> None:
        """Look at the topics. Content that is equal stays the same object, so that nothing is sent."""
        found = self._look()
        self._now = {topic: data if self._now.get(topic) != data else self._now[topic] for topic, data in found.items()}
        for watcher in self.watchers:
            if any(watcher.sent.get(topic) is not data for topic, data in self._now.items()):
                watcher.news.set()
