"""The workers this gateway knows: one Attach stream each, and what came over it last.

A stream is the worker's life as seen from here. Load and prefix changes are hints for the router, never truth: what a
worker refuses or loses comes back as a message about a ticket."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from mesh.messages import Down, Hello, Load, PrefixChange, Snapshot, Tier
from mesh.session import Session


@dataclass(slots=True)
class AttachedWorker:
    hello: Hello
    session: Session
    load: Load = field(default_factory=Load)
    prefix: set[bytes] = field(default_factory=set)
    prefix_sequence: int = 0
    unreported_tokens: int = 0  # sent since the last Load
    unreported_requests: int = 0
    draining: bool = False  # it asked for nothing new

    @property
    def incarnation(self) -> int:
        return self.hello.incarnation

    @property
    def tier(self) -> Tier:
        return self.hello.tier

    @property
    def numerics(self) -> str:
        """What must be equal for two workers to serve one request: the class and what its self-test yielded."""
        return f"{self.hello.numerics} fingerprint {self.hello.fingerprint}"

    def send(self, message: Down) -> None:
        self.session.send(message)

    def count(self, tokens: int) -> None:
        self.unreported_tokens += tokens
        self.unreported_requests += 1

    def report(self, load: Load) -> None:
        self.load, self.unreported_tokens, self.unreported_requests = load, 0, 0

    def change(self, change: PrefixChange) -> None:
        """Apply a prefix change; after a gap nothing is believed until a snapshot came."""
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
    """All sessions that are up, by incarnation."""

    def __init__(self) -> None:
        self._up: dict[int, AttachedWorker] = {}

    def add(self, worker: AttachedWorker) -> None:
        self._up[worker.incarnation] = worker

    def remove(self, worker: AttachedWorker) -> None:
        self._up.pop(worker.incarnation, None)

    def get(self, incarnation: int | None) -> AttachedWorker | None:
        return None if incarnation is None else self._up.get(incarnation)

    def tier(self, tier: Tier) -> list[AttachedWorker]:
        """Those that take new requests."""
        return [worker for worker in self._up.values() if worker.tier is tier and not worker.draining]

    def __iter__(self) -> Iterator[AttachedWorker]:
        return iter(self._up.values())

    def __len__(self) -> int:
        return len(self._up)
