"""The end of a connection whose client may still send: it reads the last answer first.

Bytes that nobody reads would make the kernel reset the connection, and the answer is lost."""

import asyncio

from gateway.http.part_timer import PartTimer
from gateway.http.reading_gate import ReadingGate
from gateway.http.refusal import refusal
from gateway.http.writing import ClientWriter

LINGER_SECONDS = 5.0  # a client that has its last answer may go on sending so long, unread


class ConnectionEnd:
    def __init__(
        self, transport: asyncio.Transport, writer: ClientWriter, reading: ReadingGate, timer: PartTimer
    ) -> None:
        self._transport, self._writer, self._reading, self._timer = transport, writer, reading, timer

    def refuse(self, status: int, message: str) -> None:
        """The last answer is an error."""
        self._writer.write(refusal(status, message))
        self.linger()

    def linger(self) -> None:
        """The client gets the end of what is written, and some time in which what it still sends is dropped."""
        self._writer.refused, self._writer.writable = True, False
        if not self._transport.can_write_eof():
            self._transport.close()
            return
        self._transport.write_eof()
        self._reading.release()
        self._timer.call(None, LINGER_SECONDS, self._transport.abort)
