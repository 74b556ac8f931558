"""One request's part of a trace, in the words of the model: a world of its own, and the events that must be its steps.

Requests are nearly independent in the protocol, so each is checked alone: its gateway is worker 0, then come the
prefill and the decode processes that its attempts name. A restarted process is another worker, so every incarnation is
told apart by its number in the model. All pages of a landing count as one."""

import heapq
from dataclasses import dataclass, field

from tests.protocol.configurations import Configuration, Wanted
from tests.protocol.traces.mesh_trace import MeshEvent, MeshTrace
from tests.protocol.traces.reading import BadTrace
from tests.protocol.world import GATEWAY, Message

# The model's word for each transport; it knows no other.
TRANSPORT_KINDS = {"shm": "shm", "cuda_ipc": "shm", "one": "shm", "rdma": "rdma", "tcp": "tcp", "two": "tcp"}
ENDLESS = 1 << 40  # tokens of a request whose last token is not in the trace
MANY = 1 << 30


@dataclass(frozen=True, slots=True)
class ObservedStep:
    """An event in the model's words."""

    event: MeshEvent
    what: str  # send, receive, begin, close, end, gone
    worker: int
    peer: int = 0
    form: Message = ()
    reason: str = ""  # reason in Lost and Full


@dataclass(slots=True)
class Projection:
    request: int
    configuration: Configuration
    processes: list[int]  # processes by their number in the model: the gateway, prefill, then decode workers
    steps: list[ObservedStep]
    routes: dict[int, tuple[int, int]]  # attempt -> (decode, prefill)
    timed: bool  # its client has set a deadline
    may_move: dict[int, float] = field(default_factory=dict)  # worker -> since when the gateway may leave it
    repaired: bool = False  # some Resend is in the trace
    empty: frozenset[int] = frozenset()  # attempts whose Landing has no pages: decode's cache has the whole prompt


def project(mesh: MeshTrace, request: int) -> Projection:
    opened = mesh.opened[request]
    if 1 not in opened:
        raise BadTrace(f"request {request} has no first attempt")
    own, gateway = mesh.of_request[request], mesh.gateway_of[request]
    named = [place(mesh, o["peer"]) for o in opened.values() if o["peer"] is not None]
    met = [process for event in own for process in (event.process, event.peer)]  # also successors at an address
    prefills = list(dict.fromkeys(p for p in (*named, *met) if mesh.processes[p].tier == "prefill"))
    named = [o["decode"] for o in opened.values()]
    decodes = list(dict.fromkeys(p for p in (*named, *met) if mesh.processes[p].tier == "decode"))
    processes = [gateway, *prefills, *decodes]
    numbers = {process: number for number, process in enumerate(processes)}
    routes = {
        attempt: (numbers[each["decode"]], 0 if each["peer"] is None else numbers[place(mesh, each["peer"])])
        for attempt, each in opened.items()
    }
    words = ModelWords(mesh, request, numbers)
    tokens = [e.fields[0] for e in own if e.kind == "Tokens" and e.fields[1]]
    wanted = Wanted(pages=1, tokens=min(tokens) + 1 - words.first_base if tokens else ENDLESS)
    moves = {n: mesh.moved_on[gateway, p] for p, n in numbers.items() if (gateway, p) in mesh.moved_on}
    return Projection(
        request,
        Configuration(
            f"request {request}",
            (wanted,),
            prefills=len(prefills),
            decodes=len(decodes) + 1,  # the last one is never usable: the request may always wait for it
            pool_pages=len(opened) + 2,
            transport=transport_of(mesh, own, numbers),
            prefill_pages=MANY,
            most_attempts=MANY,
        ),
        processes,
        [step for event in in_order(mesh, own, numbers) if (step := words.step(event)) is not None],
        routes,
        timed=any(each["timed"] for each in opened.values()),
        may_move=moves,
        repaired=any(event.kind == "Resend" for event in own),
        empty=frozenset(e.ticket[1] for e in own if e.kind == "Landing" and e.ticket and not e.fields[0]),
    )


def place(mesh: MeshTrace, incarnation: int) -> int:
    if incarnation not in mesh.by_incarnation:
        raise BadTrace(f"process {incarnation:x} has no log")
    return mesh.by_incarnation[incarnation]


def transport_of(mesh: MeshTrace, own: list[MeshEvent], numbers: dict[int, int]) -> str:
    """How the pages of this request travel: the model's worlds have one transport each."""
    between = {(e.process, e.stream) for e in own if GATEWAY not in (numbers[e.process], numbers[e.peer])}
    names = {name for process, stream in between if (name := mesh.transport(process, stream))}
    kinds = {TRANSPORT_KINDS.get(name, "") for name in names} or {"shm"}
    if len(kinds) > 1 or "" in kinds:
        raise BadTrace(f"the model has no world with the transports {sorted(names)} at once")
    return kinds.pop()


def in_order(mesh: MeshTrace, own: list[MeshEvent], numbers: dict[int, int]) -> list[MeshEvent]:
    """The events of the request, and those of the streams between its workers, also from before it came."""
    streams = [[e for e in mesh.of_process[process] if e.peer in numbers] for process in numbers]
    gone = [
        MeshEvent((mesh.processes[process].last_seconds, process, MANY, 0), process, "gone", process, -1)
        for process in numbers
    ]
    return list(heapq.merge(sorted(own, key=by_order), *streams, sorted(gone, key=by_order), key=by_order))


def by_order(event: MeshEvent) -> tuple[float, int, int, int]:
    return event.order


class ModelWords:
    """Says each event in the words of the model."""

    def __init__(self, mesh: MeshTrace, request: int, numbers: dict[int, int]) -> None:
        self._numbers, self._workers = numbers, mesh.by_incarnation
        self._nonces = {attempt: each["ticket"][2] for attempt, each in mesh.opened[request].items()}
        self.first_base = mesh.opened[request][1]["base"]
        self._orders_over: dict[int, int] = {}  # worker -> the stream over which its last order came

    def step(self, event: MeshEvent) -> ObservedStep | None:
        """The event in the model's words; None: it does not concern this request."""
        if event.peer not in self._numbers:
            raise BadTrace(f"{event.kind} of a process that no attempt of the request names")
        worker, peer = self._numbers[event.process], self._numbers[event.peer]
        if event.what not in ("send", "receive"):
            if event.what != "gone" and worker != GATEWAY and peer == GATEWAY:
                if self._orders_over.get(worker) != event.stream:
                    return None  # the request came over another session with the gateway
            return ObservedStep(event, event.what, worker, peer)
        if worker != GATEWAY and peer == GATEWAY and event.what == "receive":
            self._orders_over[worker] = event.stream
        reason = event.fields[0] if event.kind in ("Lost", "Full") else ""
        return ObservedStep(event, event.what, worker, peer, self._form(event), reason)

    def _form(self, event: MeshEvent) -> Message:
        if event.kind == "Cancel":
            return "Cancel", 0, 0, event.fields[1]
        assert event.ticket is not None
        _, attempt, nonce = event.ticket
        ticket = 0, attempt, int(self._nonces.get(attempt) != nonce)
        match event.kind:
            case "Open" | "Prefill":
                base, other = event.fields
                number = 0 if other is None else self._numbers.get(self._workers.get(other, -1), -1)
                return event.kind, ticket, number, base - self.first_base
            case "Tokens":
                return event.kind, ticket, event.fields[0] - self.first_base
            case "Quiet":
                return event.kind, ticket, self._numbers.get(self._workers.get(event.fields[0], -1), -1)
            case "Written" | "Commit" | "Resend":
                return event.kind, ticket, event.fields[0]
            case _:
                return event.kind, ticket


def form_of(message: Message) -> Message:
    """The part of the model's message that a log shows."""
    match message[0]:
        case "Tokens":
            return message[:3]
        case "Landing":
            return message[:2]
        case "Resend":
            return message[0], message[1], message[3]
        case _:
            return message
