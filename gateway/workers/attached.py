"""One worker that is attached to this gateway, and what it last reported over its Attach stream.

Load and prefix changes are hints for the router, never truth: what a worker refuses or loses comes back as a message
about a ticket. Every change goes to the worker's observer, so that the router compares columns
(gateway/routing/worker_table.py) and looks at no worker by itself."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from gateway.workers.clocks import WorkerClock
from mesh.messages.adapters import NamedAdapter
from mesh.messages.jobs import Tier
from mesh.messages.message import Down
from mesh.messages.orders import Snapshot
from mesh.messages.reports import Distribution, Hello, Load, Measures, PageMap, PrefixChange
from mesh.sessions.session import Session


class WorkerObserver(Protocol):
    def changed(self, worker: "AttachedWorker") -> None:
        """The load of the worker changed, or whether it takes requests."""

    def cached(self, worker: "AttachedWorker", added: Iterable[bytes], removed: Iterable[bytes]) -> None:
        """These blocks came into its prefix cache, and these left it."""


class UnwatchedWorker:
    """The observer of a worker that no router knows."""

    def changed(self, worker: "AttachedWorker") -> None:
        pass

    def cached(self, worker: "AttachedWorker", added: Iterable[bytes], removed: Iterable[bytes]) -> None:
        pass


UNWATCHED = UnwatchedWorker()
MOST_CONTENTS = 4096  # hashes of adapters that are remembered of one worker


@dataclass(slots=True)
class AttachedWorker:
    hello: Hello
    session: Session
    load: Load = field(default_factory=Load)
    model: str = ""  # root of the model's names at this gateway; empty: the name that the worker itself gives it
    prefix: set[bytes] = field(default_factory=set)  # block hashes in its prefix cache
    prefix_sequence: int = 0
    unreported_tokens: int = 0  # prompt tokens sent to it since its last Load
    unreported_requests: int = 0  # requests sent to it since its last Load
    behind_tokens: int = 0  # tokens of its prompts from this gateway that a new request overtakes
    draining: bool = False  # it asked for no new requests
    hung: bool = False  # its compute makes no progress; it gets no requests until it does
    moved_seconds: float = 0.0  # when its compute loop reported last
    step_seconds: float = 0.0  # how long the step that runs has taken, by its last LongStep; 0: none takes long
    step_limit_seconds: float = 0.0  # how long the step that runs may take, by its last LongStep; 0: none takes long
    core_mates: tuple["AttachedWorker", ...] = ()  # other decode workers that compute on all of its host's cores
    page_map: PageMap | None = None  # the last one; the worker sends none while nobody watches
    measures: dict[str, float] = field(default_factory=dict)  # what it counted, as of its last Measures
    distributions: dict[str, Distribution] = field(default_factory=dict)  # its histograms
    measured_seconds: float | None = None  # when its last Measures came
    observer: WorkerObserver = UNWATCHED
    adapters: dict[str, NamedAdapter] = field(default_factory=dict)  # by name, as it last reported them
    contents: set[str] = field(default_factory=set)  # hashes of those that it has or had: it may still know them
    clock: WorkerClock = field(init=False)

    def __post_init__(self) -> None:
        self.clock = WorkerClock(self.send)
        self.model = self.model or self.hello.model
        self.has_adapters(self.hello.adapters)

    @property
    def name(self) -> str:
        """The worker's configured name, or one made of its tier and incarnation."""
        return self.hello.name or f"{self.tier.value}-{self.incarnation:016x}"[: len(self.tier.value) + 9]

    @property
    def takes_requests(self) -> bool:
        return not self.draining and not self.hung

    @property
    def incarnation(self) -> int:
        return self.hello.incarnation

    @property
    def tier(self) -> Tier:
        return self.hello.tier

    @property
    def numerics(self) -> str:
        """Numerics class and fingerprint of its self-test; workers that serve one request have equal ones."""
        return f"{self.hello.numerics} fingerprint {self.hello.fingerprint}"

    @property
    def bands(self) -> int:
        """Pages that hold the same tokens, each of other layers."""
        return (self.hello.windowed_bands + self.hello.full_bands) or 1

    @property
    def pool_tokens(self) -> int:
        """Tokens of the longest text for which it has pages. Where all layers have windows a text of any length holds
        few of them; where some have, it holds few of theirs."""
        hello, pages = self.hello, self.load.total_pages
        size, window, full = hello.page_tokens, hello.window_tokens, hello.full_bands
        tokens = pages // self.bands * size
        if not full:
            return max(tokens, hello.context_tokens) if 0 < window < tokens else tokens
        most = -(-(window + hello.chunk_tokens) // size) + 1  # as the worker counts, Horizon.most_pages
        return max(tokens, (pages - hello.windowed_bands * most) // full * size)

    def pages(self, tokens: int) -> float:
        """Pages, or a part of one, that so many tokens of a text take: with windows those of the last tokens only."""
        hello = self.hello
        window, size, windowed = hello.window_tokens, hello.page_tokens, hello.windowed_bands or 1
        return (hello.full_bands * tokens + windowed * (min(tokens, window + size) if window else tokens)) / size

    @property
    def page_dtype(self) -> str:
        """The dtype of the keys and values in its pages; empty: it has not said."""
        shape = self.hello.pages.shape if self.hello.pages is not None else None
        return shape.segments[0].dtype if shape is not None else ""

    def send(self, message: Down) -> None:
        self.session.send(message)

    def computes(self, seconds: float, limit_seconds: float) -> None:
        """The step that runs has taken `seconds`, and may take `limit_seconds`; 0: none takes long."""
        if (self.step_seconds, self.step_limit_seconds) != (seconds, limit_seconds):
            self.step_seconds, self.step_limit_seconds = seconds, limit_seconds
            self.observer.changed(self)

    def drains(self) -> None:
        self.draining = True
        self.observer.changed(self)

    def hangs(self, hung: bool) -> None:
        self.hung = hung
        self.observer.changed(self)

    def count(self, tokens: int) -> None:
        self.unreported_tokens += tokens
        self.unreported_requests += 1
        self.observer.changed(self)

    def has_behind(self, tokens: int) -> None:
        """The worker has `tokens` more tokens of prompts that a new request overtakes; negative: fewer."""
        self.behind_tokens += tokens
        self.observer.changed(self)

    def report(self, load: Load) -> None:
        self.load, self.unreported_tokens, self.unreported_requests = load, 0, 0
        self.observer.changed(self)

    def has_adapters(self, adapters: Iterable[NamedAdapter]) -> None:
        self.adapters = {each.name: each for each in adapters}
        now = {each.digest for each in self.adapters.values()}
        self.contents = self.contents | now if len(self.contents) < MOST_CONTENTS else now

    def measure(self, measures: Measures, now: float) -> None:
        self.measures = {each.name: each.value for each in measures.values}
        self.distributions = {each.name: each for each in measures.distributions}
        self.measured_seconds = now

    def change(self, change: PrefixChange) -> None:
        """Apply a prefix change. After a gap the prefixes count as unknown until the worker sends a snapshot."""
        before = self.prefix
        if change.snapshot:
            self.prefix = set(change.added)
            self.observer.cached(self, self.prefix - before, before - self.prefix)
        elif change.sequence == self.prefix_sequence + 1:
            removed = before.intersection(change.removed)
            before -= removed
            added = set(change.added) - before
            before |= added
            self.observer.cached(self, added - removed, removed - added)
        else:
            self.prefix = set()
            self.observer.cached(self, (), before)
            self.send(Snapshot())
            return
        self.prefix_sequence = change.sequence
