"""Fuzz target of the KV wire with frames, TCP: greetings and portions of frames, cut and broken at random places.

The product's receiver, its connections and wires and decode's landings run as in a worker; the case is the writer at
the other end. Bytes may change only in layers of an open landing into which a frame has begun that the landing takes.
Layers that are valid, pages of landings that have ended and pages of no landing stay as they are."""

import socket
import struct
from collections.abc import Callable
from random import Random
from typing import Any, cast

import numpy as np

import baton_kernels
from decode_svc.request.requests import OpenLanding, layer_mask
from kvtransfer.frames import GREETING_BYTES, Greeting, PoolHandle
from kvtransfer.portions import COUNT_BYTES, FRAME_BYTES, pack_portion
from kvtransfer.tcp import TcpOptions, TcpReceiver
from kvtransfer.tcp_wires import PlainWire, TlsWire
from kvtransfer.transfer import Arrived, Span
from mesh.messages.jobs import Ticket
from mesh.messages.page_shape import PageShape, opaque_pages
from tests.fuzz.case_loop import CaseLoop, case_loop
from tests.fuzz.cases import ODD_INTS, Wrong, chance, mutated
from tests.fuzz.guarded_pool import GuardedPool

SHAPE = opaque_pages((3, 128), (1, 64), content="fuzz")
PAGES, WRITER, RECEIVER = 8, 0xA11CE, 0xB0B
TICKETS = tuple(Ticket(request, 1, bytes([request]) * 16) for request in (1, 2, 3))
_POOL: list[GuardedPool] = []


class GuardedLanding:
    """A landing of decode with the receiver's callbacks, and the guards that follow from its state."""

    def __init__(self, ticket: Ticket, pages: tuple[int, ...], pool: GuardedPool) -> None:
        every = (1 << pool.shape.layers) - 1
        self.state = OpenLanding(ticket, WRITER, "tcp", 1, pages, 0.0, 0.0, [0] * len(pages), every)
        self._pool, self.sound, self.ended = pool, 0, False
        self._valid: set[tuple[int, int]] = set()  # (page, layer): a sound frame has landed there

    @property
    def places(self) -> dict[int, int]:
        return dict(enumerate(self.state.pages, self.state.first_page))

    def begins(self, index: int, first_layer: int, layers: int) -> bool:
        takes, page = self.state.frame_begins(index, first_layer, layers), self.places[index]
        places = {(page, layer) for layer in range(first_layer, first_layer + layers)}
        if takes and places <= self._valid:
            raise Wrong(f"page {page} takes valid layers once more")
        if takes and not self.ended:
            self._valid -= places
            self._pool.release(page, range(first_layer, first_layer + layers))
        return takes

    def arrived(self, frame: Arrived) -> None:
        place, mask = frame.page - self.state.first_page, layer_mask(frame.first_layer, frame.layers)
        page = self.state.pages[place]
        self.state.frame_ends(frame.page, frame.first_layer, frame.layers)
        sound = self._pool.checksum(page, frame.first_layer, frame.layers) == frame.checksum
        self.sound += sound
        self.state.settle(place, mask, valid=sound)
        valid = self.state.valid[place]
        layers = [layer for layer in range(self._pool.shape.layers) if (mask & valid) >> layer & 1]
        self._valid |= {(page, layer) for layer in layers}
        self._pool.guard(page, layers)

    def over(self) -> None:
        self.ended = True
        for page in self.state.pages:
            self._pool.guard(page, range(self._pool.shape.layers))


class Receiving:
    """A receiver with three landings, and one connection to it."""

    def __init__(self, rng: Random, pool: GuardedPool, loop: CaseLoop) -> None:
        self.rng, self.pool, self.loop = rng, pool, loop
        self.receiver = TcpReceiver(pool, RECEIVER, cast(Any, rng), TcpOptions(), tls=None)
        self.token = PoolHandle.unpack(self.receiver.handle(WRITER) + b":1").token
        self.landings: dict[Ticket, GuardedLanding] = {}
        self.ended: list[GuardedLanding] = []
        self._free = list(range(PAGES))
        rng.shuffle(self._free)
        for ticket in TICKETS[:2]:
            self.open(ticket)

    def open(self, ticket: Ticket) -> None:
        self.close(ticket)
        count = self.rng.randint(1, 2)
        pages = tuple(self._free.pop() for _ in range(min(count, len(self._free))))
        if pages:
            landing = self.landings[ticket] = GuardedLanding(ticket, pages, self.pool)
            self.receiver.open(ticket.pack(), landing.places, landing.arrived, landing.begins)

    def close(self, ticket: Ticket) -> None:
        """The landing ends, and its pages go to others, which guard them."""
        self.receiver.close(ticket.pack())
        if landing := self.landings.pop(ticket, None):
            landing.over()
            self.ended.append(landing)

    @property
    def deep(self) -> bool:
        return any(landing.sound for landing in (*self.landings.values(), *self.ended))


def kv_frames(rng: Random) -> bool:
    """A case reaches deep states when a sound frame has landed."""
    pool = _POOL[0] if _POOL else GuardedPool(SHAPE, PAGES)
    _POOL[:] = [pool]
    pool.reset()
    with case_loop() as loop:
        case = Receiving(rng, pool, loop)
        greeting = Greeting(case.token, WRITER, RECEIVER, SHAPE).pack()
        if chance(rng, 0.03):
            greeting = Greeting(rng.choice((rng.randbytes(16), bytes(16))), WRITER, RECEIVER, SHAPE).pack()
        sent = mutated(rng, greeting) if chance(rng, 0.03) else greeting
        stream = sent + b"".join(_portion(rng, pool.shape) for _ in range(rng.randint(1, 3)))
        deliver, hang_up = (_plain if chance(rng, 0.5) else _with_tls)(case)
        try:
            _write(rng, case, stream, deliver)
        finally:
            hang_up()
        loop.turn()
        pool.check()
        if case.deep and not _admissible(sent, case.token):
            raise Wrong("a writer without the token has written a page")
        return case.deep


def _write(rng: Random, case: Receiving, stream: bytes, deliver: "Deliver") -> None:
    """The stream comes in pieces; landings end and begin between them, and in the end none is open."""
    for piece in _cut(rng, stream):
        deliver(piece)
        case.pool.check()
        if chance(rng, 0.12):
            rng.choice((case.open, case.close))(rng.choice(TICKETS))
    for ticket in TICKETS:
        case.close(ticket)
    deliver(rng.randbytes(64))


def _admissible(greeting: bytes, token: bytes) -> bool:
    """Does it show token, writer and receiver of the handle, behind magic and version?"""
    return len(greeting) >= GREETING_BYTES and greeting[8:40] == struct.pack("<16sQQ", token, WRITER, RECEIVER)


def _portion(rng: Random, shape: PageShape) -> bytes:
    """Frames of one or several tickets and their bytes; broken in a fifth of the cases."""
    heads, bodies, count = list[bytes](), list[bytes](), 0
    for _ in range(rng.choice((1, 1, 2))):
        ticket = rng.choice(TICKETS).pack() if chance(rng, 0.95) else rng.randbytes(32)
        spans = [_span(rng, shape) for _ in range(rng.randint(1, 3))]
        sums, count = list[int](), count + len(spans)
        for span in spans:
            offset, size = shape.place(span.first_layer, span.layers)
            body = rng.randbytes(size)
            right = baton_kernels.checksum(int(np.frombuffer(body, np.uint8).ctypes.data), size, offset // 8)
            sums.append(right if chance(rng, 0.8) else rng.getrandbits(64))
            bodies.append(body)
        heads.append(pack_portion(ticket, spans, rng.randrange(3), sums, shape)[COUNT_BYTES:])
    raw = struct.pack("<4sI", b"BPOR", count) + b"".join(heads)
    if chance(rng, 0.15):
        raw = _with_odd_field(rng, raw) if chance(rng, 0.5) else mutated(rng, raw)
    body = b"".join(bodies)
    return raw + (mutated(rng, body) if chance(rng, 0.05) else body)


def _span(rng: Random, shape: PageShape) -> Span:
    first = rng.randrange(shape.layers)
    return Span(rng.choice((1, 1, 1, 2, 2, 0, 3)), 0, 0, first, rng.randint(1, shape.layers - first))


def _with_odd_field(rng: Random, raw: bytes) -> bytes:
    """One number of one frame, or their count, is replaced."""
    data, value = bytearray(raw), rng.choice(ODD_INTS)
    if chance(rng, 0.2):
        struct.pack_into("<I", data, 4, value & 0xFFFFFFFF)
        return bytes(data)
    frame = COUNT_BYTES + FRAME_BYTES * rng.randrange((len(raw) - COUNT_BYTES) // FRAME_BYTES)
    if chance(rng, 0.3):
        struct.pack_into("<Q", data, frame + FRAME_BYTES - 8, value)
    else:
        struct.pack_into("<I", data, frame + FRAME_BYTES - 32 + 4 * rng.randrange(4), value & 0xFFFFFFFF)
    return bytes(data)


def _cut(rng: Random, raw: bytes) -> list[bytes]:
    """The stream in up to eight pieces, as a network may deliver it."""
    ends = sorted(rng.randrange(len(raw) + 1) for _ in range(rng.randrange(8)))
    return [raw[begin:end] for begin, end in zip([0, *ends], [*ends, len(raw)], strict=True) if end > begin]


Deliver = Callable[[bytes], None]


def _plain(case: Receiving) -> tuple[Deliver, Callable[[], None]]:
    """A plain connection: a pair of sockets, of which the receiver reads one."""
    mine, theirs = socket.socketpair()
    mine.setblocking(False)
    theirs.setblocking(False)
    fileno = theirs.fileno()
    PlainWire(theirs, case.receiver)

    def deliver(piece: bytes) -> None:
        try:
            mine.sendall(piece)
        except (BrokenPipeError, ConnectionResetError):
            return  # the receiver has refused this connection
        while case.loop.readable(fileno) and _unread(theirs):
            pass

    def hang_up() -> None:
        mine.close()
        case.loop.readable(fileno)

    return deliver, hang_up


def _unread(connection: socket.socket) -> bool:
    try:
        return bool(connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except (BlockingIOError, OSError):
        return False


class _Transport:
    """The event loop's transport of a connection with TLS, behind the decryption."""

    def __init__(self) -> None:
        self.open = True

    def write(self, data: bytes) -> None:
        pass

    def abort(self) -> None:
        self.open = False

    close = abort


def _with_tls(case: Receiving) -> tuple[Deliver, Callable[[], None]]:
    wire, transport = TlsWire(case.receiver), _Transport()
    wire.connection_made(cast(Any, transport))

    def deliver(piece: bytes) -> None:
        at = 0
        while at < len(piece) and transport.open:
            buffer = wire.get_buffer(-1)
            count = min(len(buffer), len(piece) - at)
            if not count:
                raise Wrong("the receiver offers no memory for the next bytes")
            buffer[:count] = piece[at : at + count]
            wire.buffer_updated(count)
            at += count

    return deliver, lambda: wire.connection_lost(None)
