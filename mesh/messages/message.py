"""Which messages travel in which stream; `mesh/messages/codec.py` turns them into protobuf at the edge.

The Attach stream carries `Down` (mesh/messages/orders.py) from gateway to worker and `Up` (mesh/messages/reports.py)
from worker to gateway; the kv.v1 stream carries `Kv` (mesh/messages/kv_messages.py) between prefill and decode."""

from dataclasses import dataclass

from mesh.messages.adapters import (
    AbandonAdapter,
    AdapterRead,
    Adapters,
    AssignAdapter,
    ReadAdapter,
    UnloadAdapter,
)
from mesh.messages.kv_messages import (
    Abort,
    Commit,
    Computing,
    KvHello,
    Landed,
    Landing,
    Later,
    Quiet,
    Ready,
    Resend,
    Written,
)
from mesh.messages.orders import Cancel, ClockProbe, Examine, Open, PageQuery, Prefill, Refused, Snapshot, Watch
from mesh.messages.reports import (
    Begun,
    ClockReading,
    Embedded,
    Full,
    Hello,
    Load,
    LongStep,
    Lost,
    Measures,
    PageMap,
    PageReport,
    Phases,
    Prefilled,
    PrefixChange,
    Register,
    Scored,
    Tokens,
)


@dataclass(frozen=True, slots=True)
class Drain:
    """From a worker: it takes no new requests, and those that it has go on. To a worker: an operator orders this."""

    grace_ms: int | None = (
        None  # the worker stays for this time, and gateways hand over what needs longer; None: no end is set
    )


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Sent when the session has carried nothing else for about a heartbeat's time."""


AdapterOrder = ReadAdapter | AssignAdapter | AbandonAdapter | UnloadAdapter
Down = (
    Prefill
    | Open
    | Examine
    | Cancel
    | Snapshot
    | ClockProbe
    | Watch
    | Drain
    | Refused
    | PageQuery
    | AdapterOrder
    | Heartbeat
)
Up = (
    Hello
    | Tokens
    | Prefilled
    | Scored
    | Embedded
    | Lost
    | Full
    | Begun
    | LongStep
    | Load
    | PrefixChange
    | Drain
    | ClockReading
    | Phases
    | Measures
    | PageMap
    | PageReport
    | Adapters
    | AdapterRead
    | Heartbeat
)
Kv = KvHello | Ready | Landing | Later | Written | Computing | Commit | Resend | Landed | Abort | Quiet | Heartbeat
Message = Register | Down | Up | Kv
