"""What a decode worker says of itself: its load, with every report to its gateways, and what it has counted, to whoever
checks a mesh. Nothing in a request's life depends on the counts."""

from collections.abc import Mapping
from dataclasses import asdict

from decode_svc.handoff.landings import Landings
from decode_svc.handoff.room import crowd
from decode_svc.planning import Planning
from decode_svc.requests import DecodeRequest
from decode_svc.speculation.speculation import Speculation
from engine.pages import PagePool
from engine.plan import Plan
from kvtransfer.transfer import Receiver
from mesh.messages import Load
from mesh.speed import Speed


class Account:
    def __init__(
        self,
        requests: Mapping[int, DecodeRequest],
        pages: PagePool,
        *,
        landings: Landings,
        planning: Planning,
        speculation: Speculation,
        receivers: Mapping[str, Receiver],
    ) -> None:
        self.admitted_local = 0
        self._requests, self._pages, self._landings, self._planning = requests, pages, landings, planning
        self._speculation, self._receivers = speculation, receivers
        self._speed = Speed()

    def measure(self, plan: Plan, seconds: float) -> None:
        guesses = sum(max(0, piece.sampled - 1) for piece in plan.pieces)
        self._speed.measure(plan.rows - guesses, seconds)

    def load(self) -> Load:
        waiting, running, queued = crowd(self._requests.values())
        pages = self._pages
        return Load(waiting, running, queued, pages.available, pages.pages, self._speed.tokens_per_second)

    def counts(self) -> dict[str, int]:
        """Since the start: admissions by who prefilled them, bytes given pages, steps and those of them launched before
        the one in front was read, drafts that were verified and those that were accepted, writers' connections that
        came to nothing. Now: states of pages."""
        return {
            "admitted_remote": self._landings.whole,
            "admitted_patched": self._landings.admitted - self._landings.whole,
            "admitted_local": self.admitted_local,
            "bytes_landed": self._landings.bytes_landed,
            "steps": self._planning.steps,
            "steps_ahead": self._planning.steps_ahead,
            "largest_batch": self._planning.largest_batch,
            "drafted": self._speculation.drafted,
            "accepted": self._speculation.accepted,
            **{f"pages_{state}": count for state, count in asdict(self._pages.counts()).items()},
            **self._refused(),
        }

    def _refused(self) -> dict[str, int]:
        return {
            f"refused_{name}_{reason}": count
            for name, receiver in self._receivers.items()
            for reason, count in receiver.refused.items()
        }
