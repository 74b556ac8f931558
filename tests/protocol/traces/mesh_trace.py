"""The logs of a mesh put together: who is at the other end of each stream, and which events concern which request.

A worker does not learn which gateway dials it. The orders that come over a stream tell: a request has one gateway."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.protocol.traces.reading import BadTrace, Line, ProcessTrace

Order = tuple[float, int, int, int]  # seconds, process, number of the line, place in the line

# Kinds of messages that the model does not know. They tell who is there, or allow an attempt to move on.
ABOUT_SESSIONS = ("Hello", "KvHello", "Heartbeat", "Drain", "LongStep")


@dataclass(slots=True)
class StreamFacts:
    """One end of a stream."""

    channel: str
    peer: int | None = None  # index of the process at the other end; None: no message has told
    transport: str = ""  # for a stream between prefill and decode: what decode has chosen


@dataclass(frozen=True, slots=True)
class MeshEvent:
    """A message of one process, or a change of one of its sessions."""

    order: Order
    process: int
    what: str  # send, receive; for a whole stream: begin, close, end
    peer: int
    stream: int
    kind: str = ""
    fields: tuple[Any, ...] = ()  # fields of the message, as `EVENT_FIELDS` names them
    ticket: tuple[int, int, str] | None = None

    @property
    def seconds(self) -> float:
        return self.order[0]


class MeshTrace:
    def __init__(self, processes: list[ProcessTrace]) -> None:
        self.processes = processes
        self.by_incarnation = {each.incarnation: at for at, each in enumerate(processes) if each.tier != "gateway"}
        self.gateway_of: dict[int, int] = {}  # request -> process
        self.opened: dict[int, dict[int, Line]] = defaultdict(dict)  # request -> attempt -> line of Open
        self.examined: set[int] = set()
        self.of_request: dict[int, list[MeshEvent]] = defaultdict(list)
        self.of_process: dict[int, list[MeshEvent]] = defaultdict(list)  # begins, closes and ends of its streams
        self.moved_on: dict[tuple[int, int], float] = {}  # (gateway, worker) -> the first Drain or LongStep
        self.landings: list[MeshEvent] = []  # what decides about pages, for tests/protocol/traces/ledger.py
        self._streams = [self._streams_of(each) for each in processes]
        for at, each in enumerate(processes):
            self._opens(at, each)
        for at, each in enumerate(processes):
            self._find_gateways(at, each)
        for at, each in enumerate(processes):
            for event in self._events(at, each):
                self._file(event)

    def transport(self, process: int, stream: int) -> str:
        return self._streams[process][stream].transport

    # ---- who is at the other end

    def _streams_of(self, process: ProcessTrace) -> dict[int, StreamFacts]:
        found = dict[int, StreamFacts]()
        for line in process.lines:
            if line["what"] == "open":
                found[line["stream"]] = StreamFacts(line["channel"])
            elif line.get("kind") in ("Hello", "KvHello"):
                facts = found[line["stream"]]
                if line["what"] == "receive":
                    facts.peer = self.by_incarnation.get(line["incarnation"])
                facts.transport = line.get("chosen", "") or facts.transport
        return found

    def _opens(self, at: int, process: ProcessTrace) -> None:
        for line in process.lines if process.tier == "gateway" else ():
            if line["what"] == "send" and line.get("kind") in ("Open", "Examine"):
                request, attempt, _ = line["ticket"]
                self.gateway_of[request] = at
                if line["kind"] == "Examine":
                    self.examined.add(request)
                else:
                    self.opened[request].setdefault(attempt, line | {"decode": self._streams[at][line["stream"]].peer})

    def _find_gateways(self, at: int, process: ProcessTrace) -> None:
        if process.tier == "gateway":
            return
        for line in process.lines:
            if line["what"] == "receive" and line.get("kind") in ("Open", "Prefill", "Examine", "Cancel"):
                request = line["request"] if line["kind"] == "Cancel" else line["ticket"][0]
                if request not in self.gateway_of:
                    raise BadTrace(f"no gateway of this trace has sent request {request}, which {process.name} got")
                self._streams[at][line["stream"]].peer = self.gateway_of[request]

    # ---- events

    def _events(self, at: int, process: ProcessTrace) -> Iterator[MeshEvent]:
        ended = {line["stream"] for line in process.lines if line["what"] == "end"}
        last = max((line["number"] for line in process.lines if line["what"] in ("send", "receive")), default=0)
        begun, current = set[int](), dict[int, int]()  # peer -> the stream that is its session
        for line in process.lines:
            if (stream := line.get("stream")) is None:
                continue
            peer, what = self._streams[at][stream].peer, line["what"]
            if peer is None or what == "open":
                continue
            order = float(line["seconds"]), at, int(line["number"])
            if line.get("kind") in ("Hello", "KvHello"):
                if stream not in begun and self._begins(process.tier, line, self._streams[at][stream]):
                    if process.tier == "gateway" and peer in current:
                        continue  # a second Hello of a worker that is attached: the gateway refuses it
                    begun.add(stream)
                    current[peer] = stream
                    yield MeshEvent((*order, 0), at, "begin", peer, stream)
            elif what in ("send", "receive"):
                yield from messages(order, at, peer, line)
            elif stream in begun or process.tier != "gateway":
                if what == "end" or stream not in ended:
                    current.pop(peer, None)
                yield MeshEvent((*order, 0), at, what, peer, stream)
                if what == "close" and stream not in ended and line["number"] < last:  # its end is handled at once
                    yield MeshEvent((*order, 1), at, "end", peer, stream)

    def _begins(self, tier: str, line: Line, facts: StreamFacts) -> bool:
        """Does this Hello begin the session, at the end that logs it?"""
        if line["kind"] == "Hello":
            return tier == "gateway"
        return bool(facts.transport) and line["what"] == ("send" if tier == "decode" else "receive")

    def _file(self, event: MeshEvent) -> None:
        if event.what in ("begin", "close", "end"):
            self.of_process[event.process].append(event)
        elif event.kind in ("Drain", "LongStep"):
            if self.processes[event.process].tier == "gateway" and event.what == "receive":
                key = event.process, event.peer
                self.moved_on[key] = min(self.moved_on.get(key, event.seconds), event.seconds)
        elif event.kind != "Heartbeat":
            request = event.fields[0] if event.kind == "Cancel" else event.ticket[0] if event.ticket else 0
            if request not in self.gateway_of:
                raise BadTrace(f"{event.kind} names request {request}, which no gateway of this trace has sent")
            self.of_request[request].append(event)
            if event.kind in ("Landing", "Landed", "Quiet", "Commit", "Resend"):
                self.landings.append(event)


def messages(order: tuple[float, int, int], at: int, peer: int, line: Line) -> Iterator[MeshEvent]:
    """The message of a line; each token of a step counts as one."""
    what, stream, kind = line["what"], line["stream"], line["kind"]
    if kind == "Tokens":
        for place, (request, attempt, nonce, position, last) in enumerate(line["tokens"]):
            ticket = request, attempt, nonce
            yield MeshEvent((*order, place), at, what, peer, stream, kind, (position, last), ticket)
        return
    found = line.get("ticket")
    rest = EVENT_FIELDS.get(kind, ())
    fields = tuple(tuple(line[name]) if name == "pages" else line[name] for name in rest)
    yield MeshEvent((*order, 0), at, what, peer, stream, kind, fields, tuple(found) if found else None)


EVENT_FIELDS = {
    "Prefill": ("base", "peer"),
    "Open": ("base", "peer"),
    "Cancel": ("request", "attempt"),
    "Lost": ("reason",),
    "Full": ("reason",),
    "Landing": ("pages",),
    "Written": ("round",),
    "Commit": ("round",),
    "Resend": ("round",),
    "Quiet": ("incarnation",),
}
