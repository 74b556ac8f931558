"""Sends what changes to everyone who watches, as server-sent events; a slow reader never holds more than one event.

Each watcher has at most one unsent version of each topic: a newer one replaces it. So the memory of a watcher does not
grow however slowly it reads. A newcomer always gets in: where too many watch, the oldest one has to go. Nothing runs
while nobody watches."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

PERIOD_SECONDS = 0.25  # between two looks at the topics
KEEPALIVE_SECONDS = 10.0  # a watcher hears something at least so often
MOST_WATCHERS, MOST_OF_PEER = 32, 8

Topics = Callable[[], dict[str, bytes]]  # topic -> its present content, one line


@dataclass(slots=True, eq=False)
class Watcher:
    news: asyncio.Event = field(default_factory=asyncio.Event)
    sent: dict[str, bytes] = field(default_factory=dict)  # topic -> the content that was sent last
    peer: str = ""  # its address
    gone: bool = False
    why: str = ""  # what the watcher is told when it has to go; empty: nothing

    def leave(self, why: str = "") -> None:
        self.gone, self.why = True, why
        self.news.set()


class Broadcast:
    """`look` returns the topics; `on_watch` is called now and then while somebody watches."""

    def __init__(self, look: Topics, on_watch: Callable[[], None]) -> None:
        self.watchers: dict[Watcher, None] = {}  # the oldest first
        self._look, self._on_watch = look, on_watch
        self._now: dict[str, bytes] = {}
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def join(self, peer: str = "") -> Watcher:
        """The oldest watcher of this peer, or of all, leaves where there are too many."""
        of_peer = [watcher for watcher in self.watchers if watcher.peer == peer]
        if len(of_peer) >= MOST_OF_PEER:
            self._drop(of_peer[0], f"a newer page took its place: one address may have {MOST_OF_PEER} pages open")
        elif len(self.watchers) >= MOST_WATCHERS:
            self._drop(next(iter(self.watchers)), f"a newer page took its place: {MOST_WATCHERS} may be open")
        watcher = Watcher(peer=peer)
        self.watchers[watcher] = None
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
            if watcher.why:
                yield b"event: end\ndata: %s\n\n" % watcher.why.encode()
        finally:
            self.forget(watcher)

    def forget(self, watcher: Watcher) -> None:
        self.watchers.pop(watcher, None)

    def _drop(self, watcher: Watcher, why: str) -> None:
        self.forget(watcher)
        watcher.leave(why)

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
