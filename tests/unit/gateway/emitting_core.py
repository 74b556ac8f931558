"""A core with the product's sequencer and fake workers, whose tokens the test emits; and clients over raw sockets."""

import asyncio
import json
import socket
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.core.interface import ChoiceRequest
from gateway.sequencing.requests import GatewayRequest, RequestPhase
from gateway.sequencing.streams import RequestStream
from mesh.messages.jobs import End, Token
from mesh.messages.reports import TokenOf, Tokens
from tests.unit.gateway.conftest import FakeCore
from tests.unit.gateway.fake_mesh import SequencerMesh, mesh

SMALL_BUFFER = 4096


@dataclass
class EmittingCore(FakeCore):
    mesh: SequencerMesh = field(default_factory=lambda: mesh(model="tiny"))
    requests: list[GatewayRequest] = field(default_factory=list)

    def submit(self, choice: ChoiceRequest) -> Any:
        request = self.mesh.sequencer.accept(choice)
        self.requests.append(request)
        return RequestStream(self.mesh.sequencer, request)

    def emit(self, count: int = 1, top: int = 0, most: int | None = None) -> None:
        """Every open request gets so many tokens in one message. With `most` tokens it ends."""
        for request in self.requests:
            if request.phase is RequestPhase.OPEN and request.ticket is not None:
                first = request.next_position
                tokens = [
                    Token(p, 97 + p % 26, -0.5, tuple(range(top)), tuple(-1.0 for _ in range(top)))
                    for p in range(first, first + count)
                ][: most and most - first]
                if tokens[-1].position + 1 == most:
                    tokens[-1] = replace(tokens[-1], end=End.LENGTH)
                worker = self.mesh.workers[self.mesh.serving(request)[1]]
                items = tuple(TokenOf(request.ticket, token) for token in tokens)
                self.mesh.sequencer.on_tokens(worker, Tokens(items))

    @property
    def running(self) -> list[GatewayRequest]:
        return [request for request in self.requests if not request.ended]


async def send_request(address: str, body: dict[str, Any], path: str = "/v1/completions") -> socket.socket:
    """A client that has sent its request and reads nothing by itself; its receive buffer is small."""
    host, _, port = address.rpartition(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
    connection.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(connection, (host, int(port)))
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
    await loop.sock_sendall(connection, f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
    return connection


async def read_raw(connection: socket.socket, until: bytes = b"\r\n0\r\n\r\n") -> bytes:
    """Read up to the end of the answer, or to `until`."""
    loop, raw = asyncio.get_running_loop(), b""
    while until not in raw:
        more = await loop.sock_recv(connection, 1 << 16)
        if not more:
            break
        raw += more
    return raw


async def read_chunks(connection: socket.socket) -> list[bytes]:
    """The chunks of the body of a whole answer."""
    _, _, rest = (await read_raw(connection)).partition(b"\r\n\r\n")
    chunks = []
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        chunks.append(rest[: int(size, 16)])
        rest = rest[int(size, 16) + 2 :]
    return chunks
