"""One stream of messages over one gRPC call, the same object at both ends.

A reader task fills the inbox, a writer task empties the outbox; send() only queues. When the call ends (by the peer,
the network, bytes that are no message, or close() here), receive() returns the messages that had arrived and then
raises StreamClosed. close() still sends the queued messages, for FLUSH_SECONDS at most: a peer that stopped reading
delays nothing."""

import asyncio
import logging
from collections import deque
from typing import Any

import grpc

from mesh.messages.codec import CodecError, Envelope
from mesh.messages.message import Message
from mesh.messages.pieces import pieces
from mesh.network.interface import StreamClosed

_log = logging.getLogger(__name__)

INBOX_MESSAGES = 4096  # with this number unread, gRPC's flow control holds the peer back
FLUSH_SECONDS = 1.0


class GrpcStream:
    def __init__(
        self,
        peer: str,
        call: Any,  # a client's call or a server's context: each has read() and write()
        outbound: Envelope,
        inbound: Envelope,
        *,
        connection: grpc.aio.Channel | None = None,  # set at the dialling end, which closes it
    ) -> None:
        self.peer = peer
        self._call = call
        self._outbound = outbound
        self._inbound = inbound
        self._connection = connection
        self._inbox: deque[Message] = deque()
        self._outbox: deque[bytes] = deque()
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._to_send = asyncio.Event()
        self._over = ""  # the reason why nothing more arrives; empty while the call goes on
        self._closed_here = False
        self._expiry: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._reader = self._loop.create_task(self._read(), name=f"read {peer}")
        self._writer = self._loop.create_task(self._write(), name=f"write {peer}")

    def send(self, message: Message) -> None:
        raw = self._outbound.encode(message)
        if not self._over:
            self._outbox.append(raw)
            self._to_send.set()

    async def receive(self) -> Message:
        while not self._inbox:
            if self._over:
                raise StreamClosed(f"{self.peer}: {self._over}")
            self._arrived.clear()
            await self._arrived.wait()
        message = self._inbox.popleft()
        self._room.set()
        return message

    def close(self) -> None:
        self._closed_here = True
        self._inbox.clear()
        self.end("closed here")

    def end(self, why: str) -> None:
        """Nothing more arrives. Once the inbox is empty, receive() raises StreamClosed with the first reason."""
        if not self._over:
            self._over = why
            self._expiry = self._loop.call_later(FLUSH_SECONDS, self._writer.cancel)
        self._arrived.set()
        self._room.set()
        self._to_send.set()

    async def closed(self) -> None:
        """Returns when the call and its tasks are gone."""
        await asyncio.wait((self._writer,))

    async def _read(self) -> None:
        why = "the stream broke"
        try:
            while (raw := await self._call.read()) is not grpc.aio.EOF:
                if self._closed_here:
                    continue
                self._inbox.extend(pieces(self._inbound.decode(raw)))
                self._arrived.set()
                while len(self._inbox) >= INBOX_MESSAGES:
                    self._room.clear()
                    await self._room.wait()
            why = "the peer ended the stream"
        except CodecError as error:
            why = f"the peer sent bytes that are no message: {error}"
            _log.warning("%s: %s", self.peer, why)
        except grpc.aio.AioRpcError as error:
            why = f"{error.code().name}: {error.details()}"
        except (grpc.RpcError, asyncio.InvalidStateError) as error:
            why = f"the stream broke: {error}"
        finally:
            self.end(why)

    async def _write(self) -> None:
        try:
            while not self._over:
                while self._outbox and not self._over:
                    await self._call.write(self._outbox.popleft())
                self._to_send.clear()
                if not self._outbox and not self._over:
                    await self._to_send.wait()
            if self._closed_here:
                await self._flush()
        except (grpc.RpcError, asyncio.InvalidStateError, asyncio.CancelledError) as error:
            self.end(f"the stream broke: {error}")
        finally:
            self._outbox.clear()
            if self._expiry is not None:
                self._expiry.cancel()
            if self._connection is not None:
                self._call.cancel()
                await self._connection.close()
            self._reader.cancel()

    async def _flush(self) -> None:
        while self._outbox:
            await self._call.write(self._outbox.popleft())
        if self._connection is not None:
            await self._call.done_writing()
            await asyncio.wait((self._reader,))  # until the peer has read all and ended its half
