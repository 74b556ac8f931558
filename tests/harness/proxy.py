"""A TCP proxy that disturbs the connections to one service: it delays bytes, holds them back, or breaks connections.

It needs no rights, unlike rules of a firewall. Bytes are never changed or lost within a connection, as TCP has it."""

import asyncio
import random as random_module

from mesh.config.config_checks import split_address

PIECE_BYTES = 65_536


class DelayingProxy:
    def __init__(self, listen: str, target: str) -> None:
        self._listen, self._target = listen, target
        self.delay_seconds = 0.0  # longest delay of a piece of bytes; each draws its own
        self._open = asyncio.Event()  # not set: no byte passes
        self._open.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        host, port = split_address(self._listen)
        self._server = await asyncio.start_server(self._accept, host, port)

    async def stop(self) -> None:
        self.release()
        self.cut()
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def hold(self) -> None:
        """No byte passes from now on; connections stay open, as with a firewall that drops packets."""
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    def cut(self) -> None:
        """Break every connection."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._open.wait()
        try:
            behind, there = await asyncio.open_connection(*split_address(self._target))
        except OSError:
            writer.transport.abort()
            return
        both = {writer, there}
        self._writers |= both
        ways = [asyncio.create_task(self._pass(reader, there)), asyncio.create_task(self._pass(behind, writer))]
        self._tasks.update(ways)
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for end in both:
            end.transport.abort()
        self._writers -= both
        await asyncio.gather(*ways, return_exceptions=True)
        self._tasks.difference_update(ways)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while piece := await reader.read(PIECE_BYTES):
                if self.delay_seconds:
                    await asyncio.sleep(random_module.uniform(0.0, self.delay_seconds))
                await self._open.wait()
                writer.write(piece)
                await writer.drain()
        except ConnectionError:
            return
