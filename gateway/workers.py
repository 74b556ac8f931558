"""The workers attached to this gateway, and what each last reported over its Attach stream.

A worker exists for the gateway as long as its stream does. Load and prefix changes are hints for the router, never
truth: what a worker refuses or loses comes back as a message about a ticket."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from gateway.observability.clocks import WorkerClock
from mesh.messages import Distribution, Down, Hello, Load, Measures, PageMap, PrefixChange, Sampling, Snapshot, Tier
from mesh.session import Session


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
    draining: bool = False  # it asked for no new requests
    hung: bool = False  # its compute makes no progress; it gets no requests until it does
    moved_seconds: float = 0.0  # when its compute loop reported last
    step_seconds: float = 0.0  # how long the step that runs has taken, by its last LongStep; 0: none takes long
    step_limit_seconds: float = 0.0  # how long the step that runs may take, by its last LongStep; 0: none takes long
    page_map: PageMap | None = None  # the last one; the worker sends none while nobody watches
    measures: dict[str, float] = field(default_factory=dict)  # what it counted, as of its last Measures
    distributions: dict[str, Distribution] = field(default_factory=dict)  # its histograms
    measured_seconds: float | None = None  # when its last Measures came
    clock: WorkerClock = field(init=False)

    def __post_init__(self) -> None:
        self.clock = WorkerClock(self.send)
        self.model = self.model or self.hello.model

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

    def send(self, message: Down) -> None:
        self.session.send(message)

    def count(self, tokens: int) -> None:
        self.unreported_tokens += tokens
        self.unreported_requests += 1

    def report(self, load: Load) -> None:
        self.load, self.unreported_tokens, self.unreported_requests = load, 0, 0

    def measure(self, measures: Measures, now: float) -> None:
        self.measures = {each.name: each.value for each in measures.values}
        self.distributions = {each.name: each for each in measures.distributions}
        self.measured_seconds = now

    def change(self, change: PrefixChange) -> None:
        """Apply a prefix change. After a gap the prefixes count as unknown until the worker sends a snapshot."""
        if change.snapshot:
            self.prefix = set(change.added)
        elif change.sequence == self.prefix_sequence + 1:
            self.prefix.difference_update(change.removed)
            self.prefix.update(change.added)
        else:
            self.prefix.clear()
            self.send(Snapshot())
            return
        self.prefix_sequence = change.sequence


class Workers:
    """Attached workers by incarnation: all, or those of one model."""

    def __init__(self, up: dict[int, AttachedWorker] | None = None) -> None:
        self._up: dict[int, AttachedWorker] = {} if up is None else up
        self._by_model: dict[str, dict[int, AttachedWorker]] = {}

    def add(self, worker: AttachedWorker) -> None:
        self._up[worker.incarnation] = worker
        self._by_model.setdefault(worker.model, {})[worker.incarnation] = worker

    def remove(self, worker: AttachedWorker) -> None:
        self._up.pop(worker.incarnation, None)
        self._by_model.get(worker.model, {}).pop(worker.incarnation, None)

    def of(self, model: str) -> "Workers":
        """The workers of this model, as they are now."""
        return Workers(self._by_model.get(model, {}))

    def get(self, incarnation: int | None) -> AttachedWorker | None:
        return None if incarnation is None else self._up.get(incarnation)

    def tier(self, tier: Tier) -> list[AttachedWorker]:
        """Workers of this tier that take new requests."""
        return [worker for worker in self._up.values() if worker.tier is tier and worker.takes_requests]

    def able(self, tier: Tier, sampling: Sampling) -> list[AttachedWorker]:
        """Workers of this tier that take new requests and honour all these sampling parameters."""
        plain = sampling.adjustments is None
        return [worker for worker in self.tier(tier) if plain or worker.hello.adjusts_logits]

    def __iter__(self) -> Iterator[AttachedWorker]:
        return iter(self._up.values())

    def __len__(self) -> int:
        return len(self._up)
