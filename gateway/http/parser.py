"""The parser of one connection's requests: httptools' own, but a wish to upgrade the connection is not heard.

A client may ask for HTTP/2 in the head of its first request, as Java's does, and goes on with HTTP/1.1 when the answer
says nothing of it. httptools ends with such a head and leaves the body unread. So a second parser reads on, from a head
that says of the body what the first one said and that nobody sees."""

from typing import Any, Protocol

import httptools

OF_BODY = (b"content-length", b"transfer-encoding")  # headers that say how long a body is


class RequestTarget(Protocol):
    """Hears of requests as they are parsed."""

    headers: list[tuple[bytes, bytes]]  # headers of the request whose head is there

    def on_message_begin(self) -> None: ...
    def on_url(self, url: bytes) -> None: ...
    def on_header(self, name: bytes, value: bytes) -> None: ...
    def on_headers_complete(self) -> None: ...
    def on_body(self, body: bytes) -> None: ...
    def on_message_complete(self) -> None: ...


class RequestParser:
    def __init__(self, target: RequestTarget) -> None:
        self._target, self._hidden = target, False  # the head is one that nobody sees
        self._held = False  # a head that wants an upgrade is there: what httptools calls its end is none
        self.on_body = target.on_body
        self._parser = self._new()

    def _new(self) -> Any:
        parser = httptools.HttpRequestParser(self)
        parser.set_dangerous_leniencies(lenient_data_after_close=True)  # the end of a pipeline is no error
        return parser

    def feed_data(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            rest = data[upgrade.args[0] :]
            lines = [b"POST / HTTP/%b" % self._parser.get_http_version().encode()]
            lines += [b"%b: %b" % header for header in self._target.headers if header[0] in OF_BODY]
            self._parser = self._new()
            self._hidden = True
            self._held = False
            self._parser.feed_data(b"\r\n".join([*lines, b"", b""]))
            self._hidden = False
            if rest:
                self.feed_data(rest)

    def close(self) -> None:
        """The connection is lost. It, httptools' parser and this one refer to each other: that would be garbage."""
        del self._parser, self._target, self.on_body

    def get_method(self) -> bytes:
        found: bytes = self._parser.get_method()
        return found

    def get_http_version(self) -> str:
        found: str = self._parser.get_http_version()
        return found

    def should_keep_alive(self) -> bool:
        found: bool = self._parser.should_keep_alive()
        return found

    def should_upgrade(self) -> bool:
        return False

    # ---- what httptools calls

    def on_message_begin(self) -> None:
        if not self._hidden:
            self._target.on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._hidden:
            self._target.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._hidden:
            self._target.on_header(name, value)

    def on_headers_complete(self) -> None:
        if not self._hidden:
            self._held = self._parser.should_upgrade()
            self._target.on_headers_complete()

    def on_message_complete(self) -> None:
        if not self._held:
            self._target.on_message_complete()
