"""Counts what a run has reached: which fault has hit a request in which phase, and which rare paths were taken."""

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from decode_svc.request.requests import DecodePhase, PageOwner
from decode_svc.worker import DecodeWorker
from gateway.sequencing.relay import TokenRelay
from mesh.messages.kv_messages import Abort, Commit, Landing, Later, Quiet, Ready, Resend
from mesh.messages.message import Drain, Message
from mesh.messages.orders import Open
from mesh.messages.reports import Full, Lost
from prefill_svc.worker import PrefillWorker

if TYPE_CHECKING:
    from tests.sim.seeds.fleet import Fleet

# The rare paths. What a run reaches must stand here, so a path that is not reached any more shows as zero.
PATHS = (
    "a lease expires at a gateway's session",
    "a lease expires at a session with decode",
    "a lease expires at a session with prefill",
    "a landing lacks progress",
    "a landing is lost with its session",
    "pages are quarantined",
    "kill from quarantine",
    "kill from quarantine is not permitted",
    "quarantined pages are proven by Commit",
    "a write reaches a quarantined page",
    "a replaced process writes",
    "Quiet declines a landing",
    "Quiet for an unknown ticket",
    "Ready comes before its Open",
    "Ready of an attempt that is over",
    "Later",
    "a landing has pages of another size",
    "a resend names pages of another size",
    "Resend",
    "decode computes what prefill did not repair",
    "a span is damaged",
    "a span is missing",
    "pages are cleared for another tenant",
    "preempted",
    "prefill cannot push",
    "a prompt is too large for prefill",
    "Full now",
    "Full ever",
    "a running request goes on under a new attempt",
    "decode prefills itself",
    "a step is launched ahead",
    "drafts are accepted",
    "a worker drains",
    "a worker refuses the next attempt and holds the one before",
    "a copy of a process is attached",
    "a process that stands still is ended",
    "a worker whose step hangs ends itself",
    "a process leaves within its grace",
    "a gateway hands its port to another process",
    "a reader is behind and its request pauses",
    "a request continues at a gateway after its gateway died",
    "a request continues after a gateway has drained",
    "a request continues in another numerics class",
    "WORKERS_DIED",
    "UNAVAILABLE",
    "OVERLOADED",
    "CLASS_UNAVAILABLE",
    "POOL_TOO_SMALL",
    "DEADLINE_EXCEEDED",
    "CANCELLED",
)
_COUNTS = {
    "expired_decode": "a lease expires at a session with decode",
    "expired_prefill": "a lease expires at a session with prefill",
    "expired_gateway": "a lease expires at a gateway's session",
    "no_progress": "a landing lacks progress",
    "landing_lost": "a landing is lost with its session",
    "quarantined": "pages are quarantined",
    "cleared": "pages are cleared for another tenant",
    "spans_damaged": "a span is damaged",
    "spans_missing": "a span is missing",
    "admitted_patched": "decode computes what prefill did not repair",
    "admitted_local": "decode prefills itself",
    "steps_ahead": "a step is launched ahead",
    "accepted": "drafts are accepted",
}
_LOST = {
    "preempted": "preempted",
    "cannot_push": "prefill cannot push",
    "too_large": "a prompt is too large for prefill",
}


class Coverage:
    def __init__(self) -> None:
        self.hits: dict[str, Counter[str]] = {}
        self.reached = Counter[str]()
        self.ways = Counter[str]()  # tokens that gateways showed, by their way to the client

    def hit(self, fault: str, phase: str) -> None:
        self.hits.setdefault(fault, Counter())[phase] += 1

    def reach(self, path: str, times: int = 1) -> None:
        if times:
            assert path in PATHS, path
            self.reached[path] += times

    def relayed(self, relay: TokenRelay) -> None:
        """The tokens of a gateway at its end: those that left at once, and those that waited for their reader."""
        self.ways.update({"fast": relay.passed, "waited": relay.waited})

    def counts(self, counts: Mapping[str, int]) -> None:
        """The counters of a worker at its end."""
        for name, path in _COUNTS.items():
            self.reach(path, counts.get(name, 0))

    def message(self, fleet: "Fleet", source: str, target: str, message: Message | None) -> None:
        """A message arrives."""
        match message:
            case Lost(reason=reason) if reason.value in _LOST:
                self.reach(_LOST[reason.value])
            case Full(kind=kind):
                self.reach(f"Full {kind.value}")
            case Later():
                self.reach("Later")
            case Resend():
                self.reach("Resend")
                if fleet.world.prefill_tokens != fleet.world.decode_tokens:
                    self.reach("a resend names pages of another size")
            case Landing() if fleet.world.prefill_tokens != fleet.world.decode_tokens:
                self.reach("a landing has pages of another size")
                self._at_a_worker(fleet, target, message)
            case Drain() if target.startswith("gateway"):
                self.reach("a worker drains")
            case Open() | Ready() | Commit() | Quiet() | Abort() | Landing():
                self._at_a_worker(fleet, target, message)

    def _at_a_worker(self, fleet: "Fleet", target: str, message: Message) -> None:
        process = fleet.workers.get(target)
        if process is not None and isinstance(worker := process.worker, DecodeWorker):
            self._at_decode(worker, message)
        elif process is not None and isinstance(worker, PrefillWorker):
            self._at_prefill(worker, message)

    def _at_decode(self, worker: DecodeWorker, message: Message) -> None:
        match message:
            case Open(job=job):
                old = worker.requests.get(job.ticket.request)
                if old is not None and old.phase is DecodePhase.RUNNING and old.ticket.attempt < job.ticket.attempt:
                    self.reach("a running request goes on under a new attempt")
            case Ready(ticket=ticket):
                request = worker.requests.get(ticket.request)
                if request is None:
                    self.reach("Ready comes before its Open")
                elif ticket.attempt < request.ticket.attempt:
                    self.reach("Ready of an attempt that is over")
            case Commit():
                owners = worker.pages.quarantined_owners()
                if any(isinstance(owner, PageOwner) and owner.committed_by(message) for owner in owners):
                    self.reach("quarantined pages are proven by Commit")
            case Quiet(ticket=ticket):
                request = worker.requests.get(ticket.request)
                if request is not None and request.landing is not None and request.landing.ticket == ticket:
                    self.reach("Quiet declines a landing")

    def _at_prefill(self, worker: PrefillWorker, message: Message) -> None:
        if isinstance(message, Abort | Landing) and worker.prompts.find(message.ticket) is None:
            self.reach("Quiet for an unknown ticket")
