"""The small worlds that are explored: how many workers and pages there are, what is requested, and what may go wrong.

`SMALL` is what `make model` explores. `DEEP` takes much longer, and `WALKS` are worlds too large to explore, through
which random runs go."""

from dataclasses import dataclass
from typing import NamedTuple

TRANSPORTS = ("shm", "rdma", "tcp")  # shm and rdma are one-sided: they write into decode's memory; tcp is two-sided
FAULTS = (
    "prefill crashes", "prefill stops", "decode crashes", "decode stops", "gateway-prefill stream breaks",
    "gateway-decode stream breaks", "kv stream breaks", "cancel", "no progress", "damage", "frame lost",
    "gateway restarts", "restart", "replacement", "client is behind",
)  # fmt: skip


class Wanted(NamedTuple):
    """The size of a request, which never changes."""

    pages: int = 1  # pages of the prompt
    tokens: int = 2  # tokens to emit
    grows_at: int = 0  # before it emits this position decode needs one more page; 0: never
    prefill: int = 1  # the first prefill worker; 0: decode prefills itself
    decode: int = 1  # the first decode worker, counted from 1
    waits_for: int = -1  # decode emits nothing before this other request has ended; -1: it waits for no other


@dataclass(frozen=True, slots=True)
class Configuration:
    name: str
    wanted: tuple[Wanted, ...]
    prefills: int = 2
    decodes: int = 1
    pool_pages: int = 2  # pages of each decode pool
    transport: str = "shm"
    faults: tuple[str, ...] = ()
    budget: int = 0  # how many faults happen at most
    may_kill: bool = True  # decode may kill a silent writer
    prefill_pages: int = 2  # pages of each prefill pool
    local_retry: bool = False  # after a failure decode prefills itself
    most_attempts: int = 5  # more of them count as attempts without end
    early_repair: bool = False  # decode may ask for a Resend before Commit
    may_fail: bool = False  # an error is a legitimate end here

    @property
    def two_sided(self) -> bool:
        return self.transport == "tcp"


def workers(transport: str) -> int:
    """One prefill worker where frames multiply the states, else two."""
    return 1 if transport == "tcp" else 2


def over_transports(
    name: str, wanted: tuple[Wanted, ...], faults: tuple[str, ...], **more: object
) -> list[Configuration]:
    """The same world once for each transport; `prefills=None` lets the transport decide."""
    prefills = more.pop("prefills", 2)
    return [
        Configuration(
            name, wanted, transport=t, faults=faults, prefills=workers(t) if prefills is None else prefills, **more
        )  # type: ignore[arg-type]
        for t in TRANSPORTS
    ]


ONE, TWO_PAGES = (Wanted(),), (Wanted(pages=2),)
TWO = (Wanted(), Wanted(prefill=2))
GROWING = (Wanted(grows_at=1), Wanted(grows_at=1, prefill=2))
CRASH_OR_STOP = ("prefill crashes", "prefill stops")
CANCEL_STOP_BREAK = ("cancel", "prefill stops", "kv stream breaks")
BREAKS = ("gateway-prefill stream breaks", "kv stream breaks", "gateway-decode stream breaks")
LOCAL = Wanted(prefill=0)

SMALL = [
    Configuration("one request, no fault", TWO_PAGES),
    *over_transports("prefill crashes or stops", ONE, CRASH_OR_STOP, budget=1),
    *over_transports("any stream breaks", TWO_PAGES, BREAKS, budget=1, prefills=None, pool_pages=3),
    *over_transports("cancel and another fault", ONE, CANCEL_STOP_BREAK, budget=2, prefills=1, pool_pages=1),
    *over_transports(
        "no progress and another fault", ONE, ("no progress", "prefill crashes", "cancel"), budget=2, prefills=None
    ),
    *over_transports("page damaged and another fault", ONE, ("damage", "cancel", "prefill crashes"), budget=2),
    *over_transports(
        "repair before Commit", ONE, ("damage", "no progress"), budget=2, prefills=None, early_repair=True
    ),
    Configuration("frame lost", TWO_PAGES, transport="tcp", faults=("frame lost",), budget=1),
    *over_transports(
        "decode crashes or stops",
        ONE,
        ("decode crashes", "decode stops"),
        budget=1,
        prefills=None,
        decodes=2,
        pool_pages=1,
    ),
    *over_transports(
        "local retry while the old attempt pushes",
        TWO_PAGES,
        ("no progress", "prefill stops"),
        budget=1,
        pool_pages=3,
        local_retry=True,
    ),
    *over_transports(
        "a worker crashes and restarts",
        ONE,
        ("prefill crashes", "decode crashes", "restart"),
        budget=2,
        pool_pages=1,
    ),
    Configuration(
        "a stopped prefill is replaced at its address",
        ONE,
        prefills=1,
        pool_pages=1,
        faults=("prefill stops", "replacement"),
        budget=2,
    ),
    Configuration(
        "a silent writer that may not be killed",
        ONE,
        prefills=1,
        decodes=2,
        pool_pages=1,
        may_kill=False,
        faults=("prefill stops",),
        budget=1,
    ),
    *(
        Configuration("the gateway restarts", ONE, transport=t, faults=("gateway restarts",), budget=1)
        for t in ("shm", "tcp")
    ),
    *over_transports("a client is behind", ONE, ("client is behind",), budget=2, prefills=1),
    Configuration(
        "a client is behind, and another fault",
        ONE,
        prefills=1,
        pool_pages=1,
        faults=("client is behind", "cancel", "decode crashes"),
        budget=2,
    ),
    Configuration("together they exceed the pool", (LOCAL, Wanted(pages=2), Wanted(pages=2, prefill=2))),
    Configuration("two requests, frames", TWO, transport="tcp", pool_pages=1),
    Configuration("two requests, a small prefill pool", (Wanted(), Wanted()), prefill_pages=1, prefills=1),
    Configuration("growth beyond the pool", GROWING),
    Configuration("growth beyond the pool, prefill crashes", GROWING, faults=("prefill crashes",), budget=1),
    Configuration("larger than the pool", (Wanted(pages=2, grows_at=1), Wanted(prefill=2)), may_fail=True),
    Configuration(
        "one decode pool full, another not",
        (Wanted(prefill=0, waits_for=2), Wanted(), Wanted(decode=2)),
        decodes=2,
        pool_pages=1,
        prefills=1,
    ),
    Configuration("a big prompt among small ones", (LOCAL, Wanted(pages=2), LOCAL, LOCAL), prefills=1),
]

DEEP = [
    *over_transports("any one fault, two decode workers", ONE, FAULTS, budget=1, decodes=2, pool_pages=1),
    *over_transports("any two faults", ONE, FAULTS, budget=2, prefills=1, pool_pages=1),
    *over_transports("cancel and another fault, two prefill workers", ONE, CANCEL_STOP_BREAK, budget=2),
    *over_transports("three faults of the hand-off", ONE, (*CANCEL_STOP_BREAK, "no progress"), budget=3, prefills=1),
    *over_transports("two requests, prefill crashes or stops", TWO, CRASH_OR_STOP, budget=1, pool_pages=1),
    *over_transports("growth, a fault", GROWING, ("prefill crashes", "no progress", "cancel"), budget=1, pool_pages=3),
    Configuration(
        "a big prompt among small ones, a fault",
        (LOCAL, Wanted(pages=2), Wanted(prefill=2)),
        faults=("prefill crashes", "no progress", "cancel"),
        budget=1,
    ),
]

CROWDS = {
    1: (Wanted(pages=2, grows_at=1, tokens=3), Wanted(prefill=2, grows_at=2, tokens=3), LOCAL),
    2: (
        Wanted(pages=2, grows_at=1, tokens=3),
        Wanted(prefill=2, decode=2, grows_at=2, tokens=3),
        Wanted(pages=2, prefill=0),
        Wanted(tokens=3),
    ),
}
WALKS = [
    Configuration(
        f"random walks, {decodes} decode",
        wanted,
        decodes=decodes,
        pool_pages=3,
        prefill_pages=4,
        transport=transport,
        faults=FAULTS,
        budget=3,
        may_kill=may_kill,
        early_repair=early_repair,
        may_fail=not may_kill,
        most_attempts=12,
    )
    for decodes, wanted in CROWDS.items()
    for transport in TRANSPORTS
    for may_kill in (True, False)
    for early_repair in (False, True)
]
