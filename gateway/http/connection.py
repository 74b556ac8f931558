"""One HTTP connection of a client, with limits on what comes in: the parser is fed in slices and by the clock.

Bytes reach the parser in small pieces, and after SLICE_SECONDS the event loop serves others first. Headers have a size
and a time, bodies a time, and requests in a pipeline wait at the socket. When all connections are taken, the oldest one
that has no complete request gives way, so half-sent requests never lock others out. What goes out is bounded in
gateway/http/writing.py."""

import asyncio
from enum import Enum
from math import inf
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from gateway.http.answering import AnswerTransport, HeldFlow, UnframedAnswer, before_messages
from gateway.http.head import fault_of
from gateway.http.open_connections import OpenConnections
from gateway.http.parser import RequestParser
from gateway.http.refusal import refusal
from gateway.http.writing import BoundedWriting

HEAD_PIECE, BODY_PIECE = 4096, 16_384  # bytes that the parser gets at once
SLICE_SECONDS = 0.002  # time for which one connection may parse before others have a turn
MAX_HEADERS = 256
NO_REQUEST = 400, "this is no HTTP request that the gateway can read"
LINGER_SECONDS = 5.0  # a client that has its error may go on sending so long, unread, so that it reads why
STOOD_STILL_SECONDS = 0.1  # a timer that is so late shows that this process stood still: bytes may wait to be read
AGAIN_SECONDS = 1.0  # so long the client has then


class Part(Enum):
    HEAD = "head"  # the headers of a request are not complete; so is a new connection
    BODY = "body"  # the headers are complete, the body is not
    DONE = "done"  # the request is complete: its answer is under way, or the next one has not begun
    REFUSED = "refused"  # an error is sent; what the client still sends is dropped


class ClientConnection(BoundedWriting):
    def __init__(self, *arguments: Any, open: OpenConnections, **named: Any) -> None:
        super().__init__(*arguments, reader_seconds=open.limits.reader_seconds, writes=open.writes, **named)
        self._open, self._limits = open, open.limits
        self._requests = RequestParser(self)
        self.parser = self._requests  # type: ignore[assignment]  # all that uvicorn uses of one
        self._part = Part.HEAD
        self._rest = b""  # received and not parsed
        self._at = 0  # where the rest begins
        self._unseen = 0  # bytes parsed since the parser last had something to show
        self._progress = False  # the piece had something to show
        self._fault = NO_REQUEST  # status and message if the parser fails
        self._timer: asyncio.TimerHandle | None = None
        self._timed: Part | None = None  # what the timer is for
        self._counted = False
        self._running: RequestResponseCycle | None = None  # the request whose answer is under way

    @property
    def closing(self) -> bool:
        return self._part is Part.REFUSED or super().closing

    # ---- the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        has_room = self._open.make_room()
        super().connection_made(transport)
        self.flow = HeldFlow(transport)
        self._open.count += 1
        self._counted = True
        if has_room:
            self._open.without_request[self] = None
            self._set_timer()
        else:
            self._refuse(503, f"all {self._limits.connections} connections of this gateway are in use; try again later")

    def connection_lost(self, exc: Exception | None) -> None:
        self._open.count -= self._counted
        self._counted = False
        self._open.without_request.pop(self, None)
        self._stop_timer()
        self._unset_keepalive_if_required()
        self._rest, self._at = b"", 0
        self._requests.close()
        super().connection_lost(exc)
        self.cycle = self._running = None  # type: ignore[assignment]  # these refer to this connection
        self.scope = None  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        if self._part is Part.REFUSED:
            return
        self._unset_keepalive_if_required()
        self._rest = self._rest[self._at :] + data if self._rest else data
        self._at = 0
        if not self._held.held:
            self._feed()

    def drop(self) -> None:
        """End the connection at once, to make room for another one."""
        self._open.without_request.pop(self, None)
        self._open.count -= self._counted
        self._counted = False
        self.transport.abort()

    # ---- feeding the parser

    @property
    def _held(self) -> HeldFlow:
        assert isinstance(self.flow, HeldFlow)
        return self.flow

    def _feed(self) -> None:
        """Parse what has come; leave the rest for later while a pipelined request waits or after a slice of time."""
        ends = self.loop.time() + SLICE_SECONDS
        while self._at < len(self._rest) and self.parser is not None and not self.transport.is_closing():
            late = self.loop.time() > ends
            if self.pipeline or late:
                self._held.hold()
                self._set_timer()  # headers may be complete, or a body
                if not self.pipeline:
                    self.loop.call_soon(self._feed)
                return
            size = BODY_PIECE if self._part is Part.BODY else HEAD_PIECE
            piece = self._rest[self._at : self._at + size]
            self._at += len(piece)
            if not self._parse(piece):
                return
        self._rest, self._at = b"", 0
        if self._held.held and self.parser is not None:
            self._held.release()
        self._set_timer()

    def _parse(self, piece: bytes) -> bool:
        """False: the request is refused."""
        self._progress = False
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserError:
            self._refuse(*self._fault)
            return False
        self._unseen = 0 if self._progress else self._unseen + len(piece)
        if self._unseen > self._limits.header_bytes:
            self._refuse(431, f"request line and headers are larger than {self._limits.header_kib} KiB")
            return False
        return True

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._part = Part.HEAD

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._part is Part.BODY:  # a trailer
            return
        if len(self.headers) >= MAX_HEADERS:
            self._fault = 431, f"the request has more than {MAX_HEADERS} headers"
            raise ValueError(self._fault)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if fault := fault_of(version := self.parser.get_http_version(), self.headers):
            self._fault = fault
            raise ValueError(fault)
        self._part, self._progress, self.framed = Part.BODY, True, version != "1.0"
        self._open.without_request.pop(self, None)
        super().on_headers_complete()
        answer = AnswerTransport(self) if self.framed else UnframedAnswer(self)
        self.cycle.transport = answer  # type: ignore[assignment]  # all that a cycle uses of one

    def on_body(self, body: bytes) -> None:
        self._progress = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._part, self._progress = Part.DONE, True
        self._stop_timer()  # the next message gets time of its own
        super().on_message_complete()
        if self.cycle is not None and self.cycle.response_complete:
            self._open.without_request[self] = None

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        last = self._open.leaving
        super()._start_asgi_task(cycle, before_messages(app, lambda: self._end_behind(cycle)) if last else app)

    def on_response_complete(self) -> None:
        self._running = None
        super().on_response_complete()
        if self._part is Part.REFUSED:
            self._unset_keepalive_if_required()
        if self.closing:
            return
        if self._part is Part.DONE and not self.pipeline:
            self._open.without_request[self] = None
        if self._part is Part.BODY and self.cycle.response_complete:  # answered before the body was complete
            self._stop_timer()
            self._timed, self._timer = Part.BODY, self.loop.call_later(LINGER_SECONDS, self.transport.close)
        if self._at < len(self._rest):
            self._unset_keepalive_if_required()  # the next request is there
            self.loop.call_soon(self._feed)
        else:
            self._set_timer()

    def leave(self) -> None:
        """The server leaves: the answer that is under way is the last one, if its head is not sent."""
        if self._running is not None:
            self._end_behind(self._running)

    def _end_behind(self, cycle: RequestResponseCycle) -> None:
        """The answer says that it ends the connection, unless its head is sent or another request waits behind it."""
        if not cycle.response_started and not self.pipeline and self._at >= len(self._rest):
            cycle.keep_alive = False

    def close_behind_answer(self) -> None:
        """End the connection as the client or the answer wants. A client that still sends its body reads the answer
        first: bytes that nobody reads would make the kernel reset the connection, and the answer is lost."""
        answered = self._running is not None and self._running.response_complete
        if self._part is Part.BODY and answered and self.transport.can_write_eof():
            self._drop_input()
            self._linger()
        else:
            self.transport.close()

    # ---- time

    def _set_timer(self) -> None:
        """Keep a timer for the part that is under way; a complete request has none."""
        part = self._part
        if self.transport.is_closing() or part is Part.REFUSED:
            return
        if part is Part.DONE and self._unseen and (self.cycle is None or self.cycle.response_complete):
            part = Part.HEAD  # empty lines before the next request
        wanted = part if part in (Part.HEAD, Part.BODY) and not self.pipeline else None
        if wanted is self._timed:
            return
        self._stop_timer()
        if wanted is not None:
            limits = self._limits
            seconds = limits.header_seconds if wanted is Part.HEAD else limits.body_seconds
            due = self.loop.time() + seconds
            self._timed, self._timer = wanted, self.loop.call_at(due, self._late, wanted, due)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._timed = None

    def _late(self, part: Part, due: float) -> None:
        if self.loop.time() - due > STOOD_STILL_SECONDS:  # once: what the client sent meanwhile is read first
            self._timer = self.loop.call_later(AGAIN_SECONDS, self._late, part, inf)
            return
        self._timer = self._timed = None
        if part is Part.HEAD and self._unseen == 0 and not self._rest:
            self.transport.close()  # a client that has sent nothing expects no answer
        elif part is Part.HEAD:
            self._refuse(408, f"the headers of a request did not come within {self._limits.header_seconds:g} s")
        else:
            self._refuse(408, f"the body of the request did not come within {self._limits.body_seconds:g} s")

    # ---- refusing

    def _refuse(self, status: int, message: str) -> None:
        """Answer with an error that no application sees, and end the connection."""
        open_cycles = [each for each in (self._running, self.cycle) if each is not None and not each.response_complete]
        begun = any(each.response_started for each in open_cycles)
        self._drop_input()
        self.writable = False
        for each in open_cycles:
            each.disconnected = True
            each.message_event.set()
        if begun or self.transport.is_closing():
            self.transport.close()
            return
        self.transport.write(refusal(status, message))
        if self.transport.can_write_eof():
            self._linger()
        else:
            self.transport.close()

    def _drop_input(self) -> None:
        """No request comes from this connection any more."""
        self._part, self._rest, self._at = Part.REFUSED, b"", 0
        self._open.without_request.pop(self, None)
        self._stop_timer()
        self._unset_keepalive_if_required()
        self.pipeline.clear()

    def _linger(self) -> None:
        """The client gets the end of what is written, and some time in which what it still sends is dropped."""
        self.transport.write_eof()
        self._held.release()
        self._timer = self.loop.call_later(LINGER_SECONDS, self.transport.abort)
