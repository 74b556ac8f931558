"""The adapters of a worker: names, contents in memory, and requests that use them.

A name stands for a content, which its hash names, and for the folder that holds it. A request says the hash: what it is
computed with never changes under it, whatever becomes of the name meanwhile. A content is in memory while requests use
it; of idle ones the least recently used leave when `places` or `most_bytes` are exceeded, and come back from their
folder when a request wants them. Requests that find no place wait for one in the order in which they came."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from engine.formats.errors import ModelError
from engine.step.adapted import AdapterWeights
from mesh.messages.adapters import NamedAdapter

log = logging.getLogger("baton.adapters")

ReadAdapter = Callable[[Path], Awaitable[AdapterWeights]]
MOST_NAMES = 1024
GRACE_SECONDS = 10.0  # a content without a name stays for so long: requests that name it are still on their way
LACKS = "this worker has no adapter of that content"


class AdapterRefused(Exception):
    """An adapter cannot be loaded; the message names it and says what to do."""


@dataclass(eq=False, slots=True)
class _Content:
    """One content: in memory while `weights` is there."""

    digest: str
    folder: Path
    nbytes: int
    weights: AdapterWeights | None = None
    holders: int = 0  # requests that have it
    kept_until: float = 0.0  # it stays until then, though it has no name
    wanted: list["AdapterLease"] = field(default_factory=list)  # those that wait until it is in memory
    users: int = 0  # requests that may compute with it: it stays in memory
    reading: asyncio.Task[None] | None = None


class AdapterLease:
    """The adapter of one request. It is computed with between `want`, once `weights` is there, and `close`."""

    def __init__(self, held: "HeldAdapters", content: _Content) -> None:
        self._held, self._content = held, content
        self._uses = self._closed = False
        self.fault = ""  # why it cannot be brought back into memory

    @property
    def weights(self) -> AdapterWeights | None:
        return self._content.weights if self._uses else None

    @property
    def ready(self) -> bool:
        """Whether steps can compute the request."""
        return self.weights is not None

    @property
    def content(self) -> "_Content":
        return self._content

    def want(self) -> None:
        """Take a place as soon as there is one; idempotent."""
        if not self._uses and not self._closed and self not in self._content.wanted:
            self._held.want(self, self._content)

    def granted(self) -> None:
        self._uses = True

    def close(self) -> None:
        """The request is over; idempotent."""
        if not self._closed:
            self._closed = True
            self._held.close(self, self._content, used=self._uses)


class ModelAlone:
    """The lease of a request without an adapter."""

    weights, ready, fault = None, True, ""

    def want(self) -> None:
        pass

    def close(self) -> None:
        pass


MODEL_ALONE = ModelAlone()
AnyLease = AdapterLease | ModelAlone


class HeldAdapters:
    def __init__(self, read: ReadAdapter, *, places: int, most_bytes: int) -> None:
        """`places`: contents in memory at one time, at most."""
        self._read, self._places, self._most_bytes = read, places, most_bytes
        self._wake: Callable[[], None] = lambda: None
        self._names = dict[str, NamedAdapter]()
        self._contents = dict[str, _Content]()  # by hash, the least recently used first
        self._line = list[AdapterLease]()  # those that wait for a place, the oldest first
        self._loads = self._evictions = 0

    def waking(self, wake: Callable[[], None]) -> "HeldAdapters":
        """The same; from now on `wake` is called when a request's adapter is ready, or cannot be."""
        self._wake = wake
        return self

    # ---- names

    def named(self) -> tuple[NamedAdapter, ...]:
        return tuple(self._names.values())

    async def load(self, name: str, folder: Path) -> tuple[NamedAdapter, "AdapterLease"]:
        """Read a folder, so that `name` can stand for its content. AdapterRefused: it cannot be read, or never fits.
        The name means what it meant before until `assign`; meanwhile the lease keeps the content."""
        try:
            weights = await self._read(folder)
        except Exception as error:  # without an answer all loads of the gateway would wait for this one
            raise AdapterRefused(f"adapter {name!r}: {why_unread(folder, error)}") from None
        if weights.nbytes > self._most_bytes:
            what = f"takes {weights.nbytes} bytes, and adapters may take {self._most_bytes} together"
            raise AdapterRefused(f"adapter {name!r}: {what}; raise lora_bytes")
        content = self._contents.get(weights.digest)
        if content is None:
            content = self._contents[weights.digest] = _Content(weights.digest, folder, weights.nbytes)
        content.folder = folder  # the newest place where it was seen
        if content.weights is None and self._room_for(content):
            self._put(content, weights)
        return NamedAdapter(name, weights.digest, str(folder)), self._lease(content)

    def assign(self, adapter: NamedAdapter) -> None:
        """From now on the name stands for this content."""
        if adapter.name not in self._names and len(self._names) >= MOST_NAMES:
            raise AdapterRefused(f"adapter {adapter.name!r}: there are {MOST_NAMES} already; unload one before")
        self._unname(adapter.name)
        self._names[adapter.name] = adapter

    def remove(self, name: str) -> None:
        """No name, no new requests; those that run keep their content."""
        self._unname(name)

    def _unname(self, name: str) -> None:
        before = self._names.pop(name, None)
        if before is not None and before.digest in self._contents:
            loop = asyncio.get_running_loop()
            self._contents[before.digest].kept_until = loop.time() + GRACE_SECONDS
            loop.call_later(GRACE_SECONDS, self._forget)

    # ---- requests

    def lease(self, digest: str) -> AnyLease | None:
        """The adapter with this hash for one request, or for an empty one the model alone; None: this worker lacks
        it."""
        if not digest:
            return MODEL_ALONE
        content = self._contents.get(digest)
        return None if content is None else self._lease(content)

    def _lease(self, content: _Content) -> AdapterLease:
        content.holders += 1
        return AdapterLease(self, content)

    def want(self, lease: AdapterLease, content: _Content) -> None:
        content.wanted.append(lease)
        self._line.append(lease)
        self._serve()

    def close(self, lease: AdapterLease, content: _Content, *, used: bool) -> None:
        content.holders -= 1
        content.users -= used
        if lease in content.wanted:
            content.wanted.remove(lease)
            self._line.remove(lease)
        self._forget()
        self._serve()

    def _serve(self) -> None:
        """Grant those that wait, in order; none passes one whose content has no place yet."""
        for lease in list(self._line):
            content = lease.content
            if content.weights is not None:
                self._grant(content)
            elif content.reading is None:
                if not self._room_for(content):
                    return
                content.reading = asyncio.get_running_loop().create_task(self._bring_back(content))

    async def _bring_back(self, content: _Content) -> None:
        named = [Path(each.folder) for each in self._names.values() if each.digest == content.digest]
        for folder in dict.fromkeys((content.folder, *named)):  # names of one content may have folders of their own
            fault = ""
            try:
                weights = await self._read(folder)
                if weights.digest != content.digest:
                    fault = f"{folder} holds another content than when the adapter was loaded"
            except Exception as error:  # any other error than these would leave the requests waiting for ever
                fault = why_unread(folder, error)
            if not fault:
                content.folder = folder
                break
        content.reading = None
        if fault:
            log.warning("adapter %s cannot be brought back into memory: %s", content.digest[:16], fault)
            for lease in content.wanted:
                lease.fault = fault
                self._line.remove(lease)
            content.wanted.clear()
        else:
            self._put(content, weights)
        self._serve()
        self._wake()

    def _grant(self, content: _Content) -> None:
        self._contents[content.digest] = self._contents.pop(content.digest)  # the most recently used one now
        for lease in content.wanted:
            content.users += 1
            lease.granted()
            self._line.remove(lease)
        content.wanted.clear()
        self._wake()

    # ---- memory

    def _room_for(self, content: _Content) -> bool:
        """Make room by letting contents go that no request computes with, those first for which none waits; False:
        those in use fill it. Requests that wait for one of them came later, so it has to go: else they and the first
        in line would wait for each other."""
        present = [each for each in self._contents.values() if each.weights is not None or each.reading is not None]
        count, nbytes = len(present), sum(each.nbytes for each in present)
        idle = [each for each in present if not each.users and each.reading is None and each is not content]
        idle.sort(key=lambda each: bool(each.wanted))  # it keeps the order of their last use
        while count >= self._places or nbytes + content.nbytes > self._most_bytes:
            if not idle:
                return False
            gone = idle.pop(0)
            gone.weights, self._evictions = None, self._evictions + 1
            count, nbytes = count - 1, nbytes - gone.nbytes
        return True

    def _put(self, content: _Content, weights: AdapterWeights) -> None:
        content.weights, self._loads = weights, self._loads + 1

    def _forget(self) -> None:
        """Contents without a name and without a request are gone, after a while."""
        named, now = {each.digest for each in self._names.values()}, asyncio.get_running_loop().time()
        for digest, content in list(self._contents.items()):
            if digest not in named and not content.holders and content.reading is None and now >= content.kept_until:
                del self._contents[digest]

    # ---- questions

    def counts(self) -> dict[str, int]:
        """Now: names, contents in memory, their bytes, requests that wait for a place. Since the start: contents that
        came into memory, and that left it for others."""
        present = [each for each in self._contents.values() if each.weights is not None]
        return {
            "adapters": len(self._names),
            "adapters_in_memory": len(present),
            "adapter_bytes": sum(each.nbytes for each in present),
            "adapters_waiting": len(self._line),
            "adapter_loads": self._loads,
            "adapter_evictions": self._evictions,
        }

    def uses(self) -> Iterator[tuple[str, int]]:
        """Hashes of contents in memory with the number of requests that compute with them."""
        return ((each.digest, each.users) for each in self._contents.values() if each.weights is not None)


def why_unread(folder: Path, error: Exception) -> str:
    """The sentence about a folder that cannot be read; the log has the place of an error that no check foresees."""
    if isinstance(error, ModelError | OSError):
        return str(error)
    log.error("%s cannot be read", folder, exc_info=error)
    return f"{folder}: cannot be read ({type(error).__name__}: {error}); the worker's log says where"


def no_adapters() -> HeldAdapters:
    """Those of a worker that computes none."""

    async def read(folder: Path) -> AdapterWeights:
        raise OSError(f"{folder}: this worker computes no adapters")

    return HeldAdapters(read, places=1, most_bytes=1)


async def open_adapters(
    read: ReadAdapter, wanted: Sequence[tuple[str, Path]], *, places: int, most_bytes: int
) -> HeldAdapters:
    """The adapters of a worker that starts, with those of its configuration."""
    held = HeldAdapters(read, places=places, most_bytes=most_bytes)
    for name, folder in wanted:
        named, lease = await held.load(name, folder)
        held.assign(named)
        lease.close()
    return held
