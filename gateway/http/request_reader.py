"""Reads the requests of one connection piece by piece, and tells its owner of their heads, bodies and ends."""

from typing import Protocol

import httptools

from gateway.http.head import fault_of
from gateway.http.parser import RequestParser
from gateway.http.part_timer import Part
from mesh.config.door_config import DoorConfig

MAX_HEADERS = 256
NO_REQUEST = 400, "this is no HTTP request that the gateway can read"


class RequestOwner(Protocol):
    """The connection, as its reader sees it."""

    def head_read(self, method: str, version: str, target: bytes, headers: list[tuple[bytes, bytes]]) -> None: ...

    def body_read(self, body: bytes) -> None:
        """More of the body is there."""

    def request_read(self) -> None:
        """The request is whole."""


class RequestReader:
    def __init__(self, owner: RequestOwner, limits: DoorConfig) -> None:
        self.part = Part.HEAD
        self.head_begun = False
        self.unseen = 0  # bytes parsed since the parser last had something to show
        self.headers: list[tuple[bytes, bytes]] = []  # headers of the request that is read
        self._target = b""
        self._owner: RequestOwner | None = owner
        self._limits = limits
        self._parser: RequestParser | None = RequestParser(self)
        self._progress = False  # the piece had something to show
        self._fault = NO_REQUEST  # status and message if the parser fails

    @property
    def closed(self) -> bool:
        return self._parser is None

    @property
    def keeps_alive(self) -> bool:
        """Whether the client lets another request follow; a trailer may say that it does not."""
        return self._parser is not None and self._parser.should_keep_alive()

    def close(self) -> None:
        """The connection is lost. It, the parser and this reader refer to each other: that would be garbage."""
        if self._parser is not None:
            self._parser.close()
        self._parser = self._owner = None

    def read(self, piece: bytes) -> tuple[int, str] | None:
        """Status and message if the request is refused."""
        assert self._parser is not None, "its connection is open"
        self._progress = False
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserError:
            return self._fault
        self.unseen = 0 if self._progress else self.unseen + len(piece)
        if self.unseen > self._limits.header_bytes:
            return 431, f"request line and headers are larger than {self._limits.header_kib} KiB"
        return None

    # ---- what the parser calls

    def on_message_begin(self) -> None:
        self.part, self.head_begun = Part.HEAD, True
        self._target, self.headers = b"", []

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.part is Part.BODY:  # a trailer
            return
        if len(self.headers) >= MAX_HEADERS:
            self._fault = 431, f"the request has more than {MAX_HEADERS} headers"
            raise ValueError(self._fault)
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        parser, owner = self._parser, self._owner
        assert parser is not None and owner is not None, "the parser calls"
        version = parser.get_http_version()
        if fault := fault_of(version, self.headers):
            self._fault = fault
            raise ValueError(fault)
        self.part, self.head_begun, self._progress = Part.BODY, False, True
        owner.head_read(parser.get_method().decode("ascii"), version, self._target, self.headers)

    def on_body(self, body: bytes) -> None:
        self._progress = True
        if self._owner is not None:
            self._owner.body_read(body)

    def on_message_complete(self) -> None:
        self.part, self._progress = Part.DONE, True
        if self._owner is not None:
            self._owner.request_read()
