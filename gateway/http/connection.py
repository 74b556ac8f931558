"""One HTTP connection of a client, with limits on what comes in: the parser is fed in slices and by the clock.

Bytes reach the parser in small pieces, and after SLICE_SECONDS the event loop serves others first. Headers have a size
and a time, bodies a time, and requests in a pipeline wait at the socket. When all connections are taken, the oldest one
that has no complete request gives way, so half-sent requests never lock others out. What goes out is bounded in
gateway/http/writing.py; gateway/http/exchange.py carries one request and its answer."""

import asyncio
from typing import cast

from starlette.types import ASGIApp

from gateway.http.ending import LINGER_SECONDS, ConnectionEnd
from gateway.http.exchange import Exchange
from gateway.http.head import expects_continue
from gateway.http.open_connections import OpenConnections
from gateway.http.part_timer import Part, PartTimer
from gateway.http.pipeline import RequestPipeline
from gateway.http.reading_gate import ReadingGate
from gateway.http.request_reader import RequestReader
from gateway.http.scope import request_scope
from gateway.http.writing import ClientWriter

HEAD_PIECE, BODY_PIECE = 4096, 16_384  # bytes that the parser gets at once
SLICE_SECONDS = 0.002  # time for which one connection may parse before others have a turn
KEEP_ALIVE_SECONDS = 5.0  # time after which a connection without a request is closed


class ClientConnection(asyncio.Protocol):
    writer: ClientWriter  # once the connection is made

    def __init__(self, app: ASGIApp, open: OpenConnections) -> None:
        self._app, self._open, self._limits = app, open, open.limits
        self._loop = asyncio.get_running_loop()
        self._reader = RequestReader(self, self._limits)
        self._rest, self._at = b"", 0  # bytes received and not parsed, and where they begin
        self._dropped = False  # the client sends what nobody reads
        self._timer = PartTimer(self._late)
        self._idle: asyncio.TimerHandle | None = None  # closes a connection on which no request comes
        self._counted = False
        self._requests = RequestPipeline()
        self._refusal: tuple[int, str] | None = None  # an error that follows the answers which are owed

    # ---- the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        has_room = self._open.make_room()
        self.writer = ClientWriter(self._transport, self._open.writes, self._limits.reader_seconds)
        self._reading = ReadingGate(self._transport)
        self._end = ConnectionEnd(self._transport, self.writer, self._reading, self._timer)
        self._open.enter(self)
        self._counted = True
        if has_room:
            self._open.without_request[self] = None
            self._set_timer()
        else:
            self._refuse(503, f"all {self._limits.connections} connections of this gateway are in use; try again later")

    def connection_lost(self, exc: Exception | None) -> None:
        self._uncount()
        self._timer.close()
        self._stop_idle()
        self._requests.client_gone()
        self.writer.client_gone()
        self._reader.close()
        self._rest, self._at = b"", 0

    def pause_writing(self) -> None:
        self.writer.pause()

    def resume_writing(self) -> None:
        self.writer.resume()

    def data_received(self, data: bytes) -> None:
        if self._reader.part is Part.OVER:
            self._dropped = True
            return
        self._stop_idle()
        self._rest = self._rest[self._at :] + data if self._rest else data
        self._at = 0
        if not self._reading.held:
            self._feed()

    def drop(self) -> None:
        """End the connection at once, to make room for another one."""
        self._uncount()
        self._transport.abort()

    def shut(self) -> None:
        """The server closes: the connection ends, behind the answer that is under way."""
        if self._requests.running is None:
            self._transport.close()
        else:
            self._requests.running.keep_alive = False

    def _uncount(self) -> None:
        self._open.without_request.pop(self, None)
        if self._counted:
            self._open.leave(self)
        self._counted = False

    # ---- feeding the parser

    def _feed(self) -> None:
        """Parse what has come; leave the rest for later while a pipelined request waits or after a slice of time."""
        ends = self._loop.time() + SLICE_SECONDS
        while self._at < len(self._rest) and not self._reader.closed and not self._transport.is_closing():
            if self._requests.waiting or self._loop.time() > ends:
                self._reading.hold()
                self._set_timer()  # headers may be complete, or a body
                if not self._requests.waiting:
                    self._loop.call_soon(self._feed)
                return
            size = BODY_PIECE if self._reader.part is Part.BODY else HEAD_PIECE
            piece = self._rest[self._at : self._at + size]
            self._at += len(piece)
            if fault := self._reader.read(piece):
                self._refuse(*fault)
                return
            if self._reader.part is Part.OVER:
                self._dropped = self._at < len(self._rest)
                break
        self._rest, self._at = b"", 0
        if self._reading.held and not self._reader.closed:
            self._reading.release()
        self._set_timer()

    # ---- what the reader has found

    def head_read(self, method: str, version: str, target: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        self._open.without_request.pop(self, None)
        exchange = Exchange(
            self,
            self.writer,
            request_scope(self.writer, method, version, target, headers),
            keep_alive=version != "1.0" and self._reader.keeps_alive,
            expects_continue=version != "1.0" and expects_continue(headers),
        )
        self._requests.parsed = exchange
        if self._requests.running is None:
            self._start(exchange)
        else:
            self._reading.pause()
            self._requests.waiting.append(exchange)

    def body_read(self, body: bytes) -> None:
        parsed = self._requests.parsed
        if parsed is not None and parsed.add(body):
            self._reading.pause()

    def request_read(self) -> None:
        self._timer.stop()  # the next message gets time of its own
        parsed = self._requests.parsed
        assert parsed is not None, "its head came before"
        parsed.end_body()
        if parsed.complete:
            self._open.without_request[self] = None
        parsed.keep_alive = parsed.keep_alive and self._reader.keeps_alive
        if not parsed.keep_alive:  # what comes behind the last request is none
            self._reader.part = Part.OVER
            if parsed.complete:
                self.fail()

    def _start(self, exchange: Exchange) -> None:
        self._requests.running = exchange
        self.writer.framed = exchange.scope["http_version"] != "1.0"
        self._open.run(exchange.run(self._app))

    # ---- what an exchange says

    def resume_reading(self) -> None:
        self._reading.resume()

    def is_last(self) -> bool:
        return self._open.leaving and not self._requests.waiting and self._at >= len(self._rest)

    def answered(self, exchange: Exchange) -> None:
        if not exchange.keep_alive:
            self.fail()
        self._requests.running = None
        if self._reader.part is Part.OVER:
            self._stop_idle()
        if self.writer.closing:
            return
        self._stop_idle()
        self._reading.resume()
        if self._requests.waiting:
            self._start(self._requests.waiting.popleft())
        elif self._refusal is not None:
            self._refuse(*self._refusal)
            return
        else:
            self._idle = self._loop.call_later(KEEP_ALIVE_SECONDS, self._transport.close)
            if self._reader.part is Part.DONE:
                self._open.without_request[self] = None
        if self._reader.part is Part.BODY and self._requests.parsed is exchange:  # its body was not awaited
            self._timer.call(Part.BODY, LINGER_SECONDS, self._transport.close)
        if self._at < len(self._rest):
            self._stop_idle()  # the next request is there
            self._loop.call_soon(self._feed)
        else:
            self._set_timer()

    def fail(self) -> None:
        """End the connection as the client or the answer wants."""
        running = self._requests.running
        answered = running is not None and running.complete
        if answered and (self._reader.part is Part.BODY or self._dropped):  # the client still sends
            self._drop_input()
            self._end.linger()
        else:
            self._transport.close()

    # ---- time

    def _set_timer(self) -> None:
        """Keep a timer for the part that is under way; a complete request has none."""
        part = self._reader.part
        if self._transport.is_closing() or part is Part.OVER:
            return
        if part is Part.DONE and self._reader.unseen and self._requests.running is None:
            part = Part.HEAD  # empty lines before the next request
        if part not in (Part.HEAD, Part.BODY) or self._requests.waiting:
            self._timer.stop()
            return
        limits = self._limits
        self._timer.start(part, limits.header_seconds if part is Part.HEAD else limits.body_seconds)

    def _stop_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._idle = None

    def _late(self, part: Part) -> None:
        reader = self._reader
        sent_nothing = reader.part is Part.DONE or not (reader.unseen or self._rest)  # but empty lines
        if part is Part.HEAD and sent_nothing and not reader.head_begun:
            self._transport.close()  # the client expects no answer
        elif part is Part.HEAD:
            self._refuse(408, f"the headers of a request did not come within {self._limits.header_seconds:g} s")
        else:
            self._refuse(408, f"the body of the request did not come within {self._limits.body_seconds:g} s")

    # ---- refusing

    def _refuse(self, status: int, message: str) -> None:
        """End the connection with an error that no application sees, behind the answers that are owed."""
        requests = self._requests
        begun = False  # the answer to the request that has the fault
        if self._reader.part is Part.BODY:
            begun = requests.parsed is not None and requests.parsed.begun
            requests.withdraw()
        self._drop_input()
        if requests.running is not None:
            self._refusal = status, message
            self._reading.release()
        elif begun or self._transport.is_closing():
            self._transport.close()
        else:
            self._end.refuse(status, message)

    def _drop_input(self) -> None:
        """No request comes from this connection any more."""
        self._reader.part, self._rest, self._at = Part.OVER, b"", 0
        self._open.without_request.pop(self, None)
        self._timer.stop()
        self._stop_idle()
