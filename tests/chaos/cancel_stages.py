"""The stage in which each cancel hit its request, put together from the services' structured events of that moment.

The gateway reports each end of a request with its phase and error, a decode worker the phase in which it drops a
cancelled request, a prefill worker the phase in which a prompt stops. The client's own guess does not count."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

STAGES = (
    "waiting",  # at the gateway: no decode worker could take the request
    "queued",  # at prefill: the prompt's turn has not come, or decode answered Later
    "asked",  # at prefill: Ready is sent, its answer has not come
    "pushing",  # a landing is open, prefill computes and pushes
    "handing_over",  # the first token is sampled, the last pages are on their way
    "decoding",  # decode runs the request
)

CANCELLED = "Cancelled"  # error of a request that its client cancelled


@dataclass(slots=True)
class _Phases:
    """The phase of one cancelled request in each service; empty where no service reported one."""

    gateway: str = ""
    decode: str = ""
    prefill: str = ""
    computed: bool = False  # the whole prompt was computed when it stopped at prefill

    @property
    def stage(self) -> str:
        if self.gateway == "waiting":
            return "waiting"
        if self.decode == "running":
            return "decoding"
        if self.prefill in ("queued", "asked"):
            return self.prefill
        if self.prefill == "held" or (self.prefill == "pushing" and self.computed):
            return "handing_over"
        if self.prefill == "pushing":
            return "pushing"
        return f"decode {self.decode or 'unknown'}, prefill {self.prefill or 'unknown'}"


class Stages:
    """Collects the events of all processes of a mesh."""

    def __init__(self) -> None:
        self.ends: dict[str, str | None] = {}  # error by the client's request_id; present once the request ended
        self._phases: dict[int, _Phases] = {}

    def take(self, event: Mapping[str, Any]) -> None:
        match event["name"]:
            case "request_ended":
                self.ends[event["request_id"]] = event["error"]
                if event["error"] == CANCELLED:
                    self._of(event).gateway = event["phase"]
            case "request_cancelled":
                self._of(event).decode = event["phase"]
            case "prompt_stopped":
                phases = self._of(event)
                phases.prefill, phases.computed = event["phase"], event["done"] == event["total"]

    def hits(self) -> Counter[str]:
        """How many cancelled requests were in each stage."""
        return Counter(phases.stage for phases in self._phases.values() if phases.gateway)

    def _of(self, event: Mapping[str, Any]) -> _Phases:
        return self._phases.setdefault(event["request"], _Phases())
