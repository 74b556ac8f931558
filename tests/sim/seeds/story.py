"""A story: the mesh, the requests and the faults of one run, as plain values. Without some of its requests or faults it
is still a story, so tests/sim/seeds/shrinking.py can make a failing one shorter."""

from dataclasses import dataclass
from math import inf

from decode_svc.speculation.speculation import DraftSource
from gateway.routing.router import Local
from mesh.messages.jobs import Sampling, Tier
from tests.sim.workers import PAGE_TOKENS

# The phases that each kind of fault can find a request in; "idle" is none.
AT_PREFILL = ("queued", "asked", "pushing", "held")
AT_DECODE = ("open", "landing", "local", "running")
AT_GATEWAY = ("waiting", "open", "paused")
AT_WORKER = (*AT_PREFILL, *AT_DECODE, "idle")
AT_CLIENT = ("queued", "asked", "pushing", "held", "open", "landing", "local", "running")
PHASES: dict[str, tuple[str, ...]] = {
    # events of a worker
    "kill": AT_WORKER,  # kill -9; another process starts in its place
    "freeze": AT_WORKER,  # SIGSTOP: its timers stop too
    "replace": AT_WORKER,  # stopped, and another process gets its address; later it goes on for a while
    "drain": AT_WORKER,  # SIGTERM
    "slow": AT_WORKER,  # its steps take many times as long
    "hang": AT_WORKER,  # no step goes on, while its loop lives
    "copy": AT_WORKER,  # a copy of the process, with its incarnation, registers from another address
    # events of a gateway
    "stand still": AT_WORKER,  # SIGSTOP without SIGCONT; a supervisor ends the process, where there is one
    "kill gateway": AT_GATEWAY,
    "freeze gateway": AT_GATEWAY,
    "drain gateway": AT_GATEWAY,
    "stand still gateway": AT_GATEWAY,
    "odd job": AT_WORKER,  # its next order for a later attempt is one that no worker can compute
    # between two hosts
    "snap": AT_WORKER,  # their streams break
    "cut": AT_WORKER,  # nothing arrives either way
    "deafen": AT_WORKER,  # nothing arrives one way
    # events of page writes
    "flip": ("pushing",),
    "torn": ("pushing",),
    "twice": ("pushing",),
    "lost": ("pushing",),
    "late": ("pushing",),
    # events of clients
    "cancel": AT_CLIENT,
    "stall": AT_CLIENT,  # the client does not read
    "deadline": AT_CLIENT,
}
WRITE_FAULTS = ("flip", "torn", "twice", "lost", "late")


@dataclass(frozen=True, slots=True)
class SimWorld:
    """The mesh of a run."""

    seed: int
    prefills: int
    decodes: int
    gateways: int
    classes: tuple[str, ...] = ("class-a",)  # numerics classes; workers of each tier take turns
    pages: int = 48
    prefill_pages: int = 48
    prefill_tokens: int = PAGE_TOKENS  # tokens in a page; pools have as many tokens as if this were the usual number
    decode_tokens: int = PAGE_TOKENS
    one_sided: bool = True
    may_kill: bool = True
    cache: bool = True
    local: Local = Local.AUTO
    chunk_tokens: int = 8
    max_batch: int = 64
    source: DraftSource = DraftSource.OFF
    ahead: bool = False
    step_seconds: float = 0.05
    latency_seconds: float = 0.005
    write_seconds: float = 0.02
    drift: float = 0.0  # clocks of nodes run faster or slower by at most this share
    supervised: bool = False  # processes that stand still as a whole, or whose step hangs, are ended
    one_port: bool = False  # clients reach all gateways at one port, as processes of one gateway
    reader_kib: int = 256
    itl_target_ms: float = 0.0  # 0: chunks have their full size, and decode takes no prompts from prefill
    window: int = 0  # slots that a row reads, its own the last; 0: all
    full_layers: int = 0  # the last layers, of which it reads all slots beside a window

    def pool_pages(self, tier: Tier) -> int:
        """Pools as large as if every page held all layers."""
        usual, tokens = (
            (self.prefill_pages, self.prefill_tokens) if tier is Tier.PREFILL else (self.pages, self.decode_tokens)
        )
        return usual * PAGE_TOKENS // tokens


@dataclass(frozen=True, slots=True)
class Demand:
    """One request of a client."""

    at: float
    prompt: tuple[int, ...]
    sampling: Sampling
    gateway: int
    deadline_seconds: float | None = None
    allow_class_change: bool = False
    priority: int = 0
    salt: bytes = b""  # salt of its tenant


@dataclass(frozen=True, slots=True)
class SimFault:
    at: float
    kind: str
    target: str = ""  # name of a process; of a write or a client: empty
    other: str = ""  # the other host, of a fault between two
    seconds: float = 0.0  # how long it lasts, or until the process is replaced
    phase: str = ""  # it waits a while for a request in this phase; empty: it does not wait
    pick: int = 0  # chooses among clients; how many writes are hit

    @property
    def lasting(self) -> bool:
        """It does not end when the run heals."""
        return self.seconds == inf

    def __str__(self) -> str:
        parts = [f"{self.at:7.2f} s", self.kind, self.target, f"<- {self.other}" if self.other else ""]
        parts += [f"for {self.seconds:.3g} s" if self.seconds else "", f"when {self.phase}" if self.phase else ""]
        parts += [f"({self.pick})" if self.kind in WRITE_FAULTS else ""]
        return " ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class Story:
    world: SimWorld
    demands: tuple[Demand, ...]
    faults: tuple[SimFault, ...]
    load_seconds: float
