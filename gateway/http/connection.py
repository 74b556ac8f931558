"""One HTTP connection of a client, with limits on what comes in: the parser is fed in slices and by the clock.

Bytes reach the parser in small pieces, and after SLICE_SECONDS the event loop serves others first. Headers have a size
and a time, bodies a time, and requests in a pipeline wait at the socket. When all connections are taken, the oldest one
that has no complete request gives way, so half-sent requests never lock others out. What goes out is bounded in
gateway/http/writing.py; gateway/http/exchange.py carries one request and its answer."""

import asyncio
from collections import deque
from typing import cast

import httptools
from starlette.types import ASGIApp

from gateway.http.exchange import Exchange
from gateway.http.head import expects_continue, fault_of
from gateway.http.open_connections import OpenConnections
from gateway.http.parser import RequestParser
from gateway.http.part_timer import Part, PartTimer
from gateway.http.reading_gate import ReadingGate
from gateway.http.refusal import refusal
from gateway.http.scope import request_scope
from gateway.http.writing import ClientWriter

HEAD_PIECE, BODY_PIECE = 4096, 16_384  # bytes that the parser gets at once
SLICE_SECONDS = 0.002  # time for which one connection may parse before others have a turn
MAX_HEADERS = 256
NO_REQUEST = 400, "this is no HTTP request that the gateway can read"
KEEP_ALIVE_SECONDS = 5.0  # time after which a connection without a request is closed
LINGER_SECONDS = 5.0  # a client that has its error may go on sending so long, unread, so that it reads why


class ClientConnection(asyncio.Protocol):
    writer: ClientWriter  # once the connection is made

    def __init__(self, app: ASGIApp, open: OpenConnections) -> None:
        self._app, self._open, self._limits = app, open, open.limits
        self._loop = asyncio.get_running_loop()
        self._parser: RequestParser | None = RequestParser(self)  # None: the connection is lost
        self.headers: list[tuple[bytes, bytes]] = []  # headers of the request that is parsed
        self._url = b""
        self._part = Part.HEAD
        self._rest, self._at = b"", 0  # bytes received and not parsed, and where they begin
        self._unseen = 0  # bytes parsed since the parser last had something to show
        self._progress = False  # the piece had something to show
        self._fault = NO_REQUEST  # status and message if the parser fails
        self._timer = PartTimer(self._late)
        self._idle: asyncio.TimerHandle | None = None  # closes a connection on which no request comes
        self._counted = False
        self._parsed: Exchange | None = None  # the request that is parsed, or was last
        self._running: Exchange | None = None  # the request whose answer is under way
        self._pipeline = deque[Exchange]()  # requests that wait for it

    # ---- the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        has_room = self._open.make_room()
        self.writer = ClientWriter(self._transport, self._open.writes, self._limits.reader_seconds)
        self._reading = ReadingGate(self._transport)
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
        for each in (self._running, self._parsed, *self._pipeline):
            if each is not None:
                each.client_gone()
        self.writer.client_gone()
        if self._parser is not None:
            self._parser.close()
        self._rest, self._at = b"", 0
        self._parser = self._parsed = self._running = None  # these refer to this connection
        self._pipeline.clear()

    def pause_writing(self) -> None:
        self.writer.pause()

    def resume_writing(self) -> None:
        self.writer.resume()

    def data_received(self, data: bytes) -> None:
        if self._part is Part.REFUSED:
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
        if self._running is None:
            self._transport.close()
        else:
            self._running.keep_alive = False

    def _uncount(self) -> None:
        self._open.without_request.pop(self, None)
        if self._counted:
            self._open.leave(self)
        self._counted = False

    # ---- feeding the parser

    def _feed(self) -> None:
        """Parse what has come; leave the rest for later while a pipelined request waits or after a slice of time."""
        ends = self._loop.time() + SLICE_SECONDS
        while self._at < len(self._rest) and self._parser is not None and not self._transport.is_closing():
            if self._pipeline or self._loop.time() > ends:
                self._reading.hold()
                self._set_timer()  # headers may be complete, or a body
                if not self._pipeline:
                    self._loop.call_soon(self._feed)
                return
            size = BODY_PIECE if self._part is Part.BODY else HEAD_PIECE
            piece = self._rest[self._at : self._at + size]
            self._at += len(piece)
            if not self._parse(self._parser, piece):
                return
        self._rest, self._at = b"", 0
        if self._reading.held and self._parser is not None:
            self._reading.release()
        self._set_timer()

    def _parse(self, parser: RequestParser, piece: bytes) -> bool:
        """False: the request is refused."""
        self._progress = False
        try:
            parser.feed_data(piece)
        except httptools.HttpParserError:
            self._refuse(*self._fault)
            return False
        self._unseen = 0 if self._progress else self._unseen + len(piece)
        if self._unseen > self._limits.header_bytes:
            self._refuse(431, f"request line and headers are larger than {self._limits.header_kib} KiB")
            return False
        return True

    # ---- what the parser has found

    def on_message_begin(self) -> None:
        self._part, self._url, self.headers = Part.HEAD, b"", []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._part is Part.BODY:  # a trailer
            return
        if len(self.headers) >= MAX_HEADERS:
            self._fault = 431, f"the request has more than {MAX_HEADERS} headers"
            raise ValueError(self._fault)
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        parser = self._parser
        assert parser is not None, "it calls"
        if fault := fault_of(version := parser.get_http_version(), self.headers):
            self._fault = fault
            raise ValueError(fault)
        self._part, self._progress, self.writer.framed = Part.BODY, True, version != "1.0"
        self._open.without_request.pop(self, None)
        exchange = Exchange(
            self,
            self.writer,
            request_scope(self.writer, parser.get_method().decode("ascii"), version, self._url, self.headers),
            keep_alive=version != "1.0" and parser.should_keep_alive(),
            expects_continue=expects_continue(self.headers),
        )
        self._parsed = exchange
        if self._running is None:
            self._start(exchange)
        else:
            self._reading.pause()
            self._pipeline.append(exchange)

    def on_body(self, body: bytes) -> None:
        self._progress = True
        if self._parsed is not None and self._parsed.add(body):
            self._reading.pause()

    def on_message_complete(self) -> None:
        self._part, self._progress = Part.DONE, True
        self._timer.stop()  # the next message gets time of its own
        if self._parsed is not None:
            self._parsed.end_body()
            if self._parsed.complete:
                self._open.without_request[self] = None

    def _start(self, exchange: Exchange) -> None:
        self._running = exchange
        self._open.run(exchange.run(self._app))

    # ---- what an exchange says

    def resume_reading(self) -> None:
        self._reading.resume()

    def is_last(self) -> bool:
        return self._open.leaving and not self._pipeline and self._at >= len(self._rest)

    def answered(self, exchange: Exchange) -> None:
        if not exchange.keep_alive:
            self.fail()
        self._running = None
        if self._part is Part.REFUSED:
            self._stop_idle()
        if self.writer.closing:
            return
        self._stop_idle()
        self._reading.resume()
        if self._pipeline:
            self._start(self._pipeline.popleft())
        else:
            self._idle = self._loop.call_later(KEEP_ALIVE_SECONDS, self._transport.close)
            if self._part is Part.DONE:
                self._open.without_request[self] = None
        if self._part is Part.BODY and self._parsed is exchange:  # answered before the body was complete
            self._timer.call(Part.BODY, LINGER_SECONDS, self._transport.close)
        if self._at < len(self._rest):
            self._stop_idle()  # the next request is there
            self._loop.call_soon(self._feed)
        else:
            self._set_timer()

    def fail(self) -> None:
        """End the connection as the client or the answer wants. A client that still sends its body reads the answer
        first: bytes that nobody reads would make the kernel reset the connection, and the answer is lost."""
        answered = self._running is not None and self._running.complete
        if self._part is Part.BODY and answered and self._transport.can_write_eof():
            self._drop_input()
            self._linger()
        else:
            self._transport.close()

    # ---- time

    def _set_timer(self) -> None:
        """Keep a timer for the part that is under way; a complete request has none."""
        part = self._part
        if self._transport.is_closing() or part is Part.REFUSED:
            return
        if part is Part.DONE and self._unseen and self._running is None:
            part = Part.HEAD  # empty lines before the next request
        if part not in (Part.HEAD, Part.BODY) or self._pipeline:
            self._timer.stop()
            return
        limits = self._limits
        self._timer.start(part, limits.header_seconds if part is Part.HEAD else limits.body_seconds)

    def _stop_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._idle = None

    def _late(self, part: Part) -> None:
        if part is Part.HEAD and self._unseen == 0 and not self._rest:
            self._transport.close()  # a client that has sent nothing expects no answer
        elif part is Part.HEAD:
            self._refuse(408, f"the headers of a request did not come within {self._limits.header_seconds:g} s")
        else:
            self._refuse(408, f"the body of the request did not come within {self._limits.body_seconds:g} s")

    # ---- refusing

    def _refuse(self, status: int, message: str) -> None:
        """Answer with an error that no application sees, and end the connection."""
        unanswered = [each for each in (self._running, self._parsed) if each is not None and not each.complete]
        begun = any(each.begun for each in unanswered)
        self._drop_input()
        self.writer.writable = False
        for each in unanswered:
            each.client_gone()
        if begun or self._transport.is_closing():
            self._transport.close()
            return
        self.writer.write(refusal(status, message))
        if self._transport.can_write_eof():
            self._linger()
        else:
            self._transport.close()

    def _drop_input(self) -> None:
        """No request comes from this connection any more."""
        self._part, self.writer.refused, self._rest, self._at = Part.REFUSED, True, b"", 0
        self._open.without_request.pop(self, None)
        self._timer.stop()
        self._stop_idle()
        for each in self._pipeline:
            each.client_gone()
        self._pipeline.clear()

    def _linger(self) -> None:
        """The client gets the end of what is written, and some time in which what it still sends is dropped."""
        self._transport.write_eof()
        self._reading.release()
        self._timer.call(None, LINGER_SECONDS, self._transport.abort)
