"""`python -m bench.gateway_bare`: the least that a streaming server can do, to which bench/gateway.py compares.

It answers every request with the head of an event stream, and writes one chunk of the given size to each of them
whenever a line comes over its standard input. It parses nothing and runs on uvloop."""

import asyncio
import sys
from typing import cast

import uvloop

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"


class BareConnection(asyncio.Protocol):
    def __init__(self, server: "BareServer") -> None:
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._writer = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """A request is one small write of the client, so it comes whole."""
        self._writer.write(HEAD + self._server.chunk)
        self._server.open[self] = self._writer

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.open.pop(self, None)


class BareServer:
    def __init__(self, event_bytes: int) -> None:
        event = b"data: " + b"x" * (event_bytes - 8) + b"\n\n"
        self.chunk = b"%x\r\n%b\r\n" % (len(event), event)
        self.open: dict[BareConnection, asyncio.Transport] = {}

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: BareConnection(self), "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)
        orders = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
        while await orders.readline():
            for transport in self.open.values():
                transport.write(self.chunk)
            await asyncio.sleep(0)  # one chunk for each write, also when several orders have come


if __name__ == "__main__":
    uvloop.run(BareServer(int(sys.argv[1])).serve())
