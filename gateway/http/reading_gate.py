"""Whether the transport of a connection reads: it pauses while a body waits for its application, and stays paused while
the parser has not had all that came."""

import asyncio


class ReadingGate:
    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport, self._paused = transport, False
        self.held = False  # nothing resumes it before `release`

    def pause(self) -> None:
        if not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._paused and not self.held:
            self._paused = False
            self._transport.resume_reading()

    def hold(self) -> None:
        self.held = True
        self.pause()

    def release(self) -> None:
        self.held = False
        self.resume()
