"""What a request was doing when its cancel came, put together from what the services noted at that moment.

The gateway notes each end with its reason, a decode worker the stage in which it forgets a request, a prefill worker
the stage in which a prompt stops there. The client's guess counts for nothing."""

import re
from collections import Counter
from dataclasses import dataclass

from bench.mesh_process import MeshProcess

STAGES = (
    "waiting",  # at the gateway: no decode worker could take it
    "queued",  # at prefill: its turn has not come, or decode said Later
    "asked",  # at prefill: Ready is out, the answer is not in
    "pushing",  # a landing is open, prefill computes and pushes
    "handing_over",  # the first token is sampled, the last pages are on their way
    "decoding",  # decode runs it
)

CANCELLED = "Cancelled"

_GATEWAY = re.compile(r"request (\d+), (\S+): ends while (\w+): (\w+)")
_DECODE = re.compile(r"request (\d+): cancelled while (\w+)")
_PREFILL = re.compile(r"request (\d+): stops while (\w+), (\d+) of (\d+) tokens")


@dataclass(slots=True)
class _Facts:
    gateway: str = ""  # the phase it was in when it was cancelled
    decode: str = ""
    prefill: str = ""
    computed: bool = False  # its whole prompt, when it stopped at prefill

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
    def __init__(self) -> None:
        self.ends: dict[str, str] = {}  # by the client's name of a request: Cancelled, or done
        self._facts: dict[int, _Facts] = {}

    def note(self, process: MeshProcess, text: str) -> None:
        if found := _GATEWAY.match(text):
            request, name, phase, self.ends[name] = found.groups()
            if self.ends[name] == CANCELLED:
                self._of(request).gateway = phase
        elif found := _DECODE.match(text):
            self._of(found[1]).decode = found[2]
        elif found := _PREFILL.match(text):
            facts = self._of(found[1])
            facts.prefill, facts.computed = found[2], found[3] == found[4]

    def hits(self) -> Counter[str]:
        return Counter(facts.stage for facts in self._facts.values() if facts.gateway)

    def _of(self, request: str) -> _Facts:
        return self._facts.setdefault(int(request), _Facts())
