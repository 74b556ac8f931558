"""Connections that are dropped in mid-request: the bytes of a request over HTTP or gRPC, and the moment of the drop.

The sockets are plain, so that nothing closes them politely. The bytes that open a gRPC call are those that gRPC's own
client sends: a listener records its preface, settings and headers once; the message itself is made anew each time."""

import asyncio
import json
import socket
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import grpc

from baton.inference.v1 import inference_pb2 as pb
from baton.inference.v1 import inference_pb2_grpc as pb_grpc
from mesh.config.config_checks import split_address

DOORS = ("http", "grpc")
STAGES = (
    "half",  # a part of the request is sent
    "waiting",  # the request is sent, its first token has not come
    "first",  # the first token has come
    "reading",  # a part of the answer has come
    "deaf",  # the client takes nothing of the answer
)
MOST_TOKENS = 2000  # tokens of an answer: far more than any client stays for
ANSWER_SECONDS = 20.0  # for which a client waits for its part of the answer
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS, _END_STREAM, _END_HEADERS, _ACK = 0, 1, 4, 1, 4, 1
_RESET = struct.pack("ii", 1, 0)  # closing the socket resets the connection


class RefusedNow(Exception):
    """The gateway does not take the request now."""


@dataclass(slots=True)
class Dropping:
    """Opens and drops connections to one gateway."""

    http: str
    grpc: str
    grpc_head: bytes  # what recorded_head found
    random: Random
    stages: Counter[str] = field(default_factory=Counter)  # drops, by door and stage
    answered: int = 0  # drops behind the first token
    refused: int = 0  # requests that waited behind too many others: the gateway says so, and nothing of them runs
    problems: list[str] = field(default_factory=list)

    async def drop(self) -> None:
        door, stage = self.random.choice(DOORS), self.random.choice(STAGES)
        prompt = "".join(chr(self.random.randint(97, 122)) for _ in range(self.random.randint(4, 300)))
        content = self._http(prompt) if door == "http" else self.grpc_head + grpc_message(prompt)
        reader, writer = await asyncio.open_connection(*split_address(self.http if door == "http" else self.grpc))
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._until(door, stage, content, reader, writer)
            self.stages[f"{door} {stage}"] += 1
        except RefusedNow:
            self.refused += 1
        except TimeoutError:
            self.problems.append(f"{door} {stage}: no token in {ANSWER_SECONDS:g} s")
        except ConnectionError as error:
            self.problems.append(f"{door} {stage}: the gateway closed: {error}")
        finally:
            if self.random.random() < 0.5:
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()

    async def _until(
        self, door: str, stage: str, content: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Return at the moment of the drop."""
        if stage == "half":
            writer.write(content[: self.random.randrange(len(content))])
            await asyncio.sleep(self.random.uniform(0.0, 0.02))
            return
        if stage == "deaf":
            writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(content)
        if stage in ("waiting", "deaf"):
            await asyncio.sleep(self.random.uniform(0.0, 0.03 if stage == "waiting" else 0.3))
            return
        wanted, received = (self.random.randint(1, 6000) if stage == "reading" else 1), bytearray()
        while len(received) < wanted or not has_token(door, received):
            piece = await reader.read(65_536)
            if not piece:
                raise ConnectionError(bytes(received[:200]))
            received += piece
            if is_refused(door, received):
                raise RefusedNow
        self.answered += 1

    def _http(self, prompt: str) -> bytes:
        body = {"prompt": prompt, "max_tokens": MOST_TOKENS, "ignore_eos": True, "temperature": 0, "stream": True}
        content = json.dumps(body).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {self.http}\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


def has_token(door: str, received: bytes | bytearray) -> bool:
    """Whether the bytes of an answer hold its first event."""
    if door == "http":
        return b"\ndata: {" in received and b'"error"' not in received
    return any(kind == _DATA and content for kind, _, content in frames(received))


def is_refused(door: str, received: bytes | bytearray) -> bool:
    """Whether the bytes of an answer are a refusal: over gRPC a head that is the end too, with no message before it."""
    if door == "http":
        return received.startswith(b"HTTP/1.1 429 ")
    kinds = [(kind, flags) for kind, flags, _ in frames(received)]
    return not any(kind == _DATA for kind, _ in kinds) and (_HEADERS, _END_HEADERS | _END_STREAM) in kinds


def grpc_message(prompt: str) -> bytes:
    """The frame of one StreamGenerateRequest, which ends the client's side of the call."""
    stop = pb.StopOptions(max_tokens=MOST_TOKENS, ignore_eos=True)
    request = pb.GenerateRequest(text=prompt, sampling=pb.SamplingOptions(temperature=0.0), stop=stop)
    message = pb.StreamGenerateRequest(request=request).SerializeToString()
    return _frame(_DATA, _END_STREAM, 1, struct.pack(">BI", 0, len(message)) + message)


async def recorded_head() -> bytes:
    """The bytes with which gRPC's client opens a connection and a call of StreamGenerate, up to its message."""
    head: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def record(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_frame(_SETTINGS, 0, 0, b""))
        received = bytearray()
        while not head.done():
            received += await reader.read(65_536)
            kept = [each for each in frames(received[len(_PREFACE) :]) if each[0] in (_SETTINGS, _HEADERS)]
            if kept and kept[-1][0] == _HEADERS:
                own = [each for each in kept if _is_own(each[0], each[1])]
                sent = [_frame(kind, flags, kind == _HEADERS, content) for kind, flags, content in own]
                head.set_result(_PREFACE + b"".join(sent))
        writer.close()

    server = await asyncio.start_server(record, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            call = pb_grpc.InferenceServiceStub(channel).StreamGenerate(pb.StreamGenerateRequest())
            found = await asyncio.wait_for(head, ANSWER_SECONDS)
            call.cancel()
        return found
    finally:
        server.close()


def frames(content: bytes | bytearray) -> Iterator[tuple[int, int, bytes]]:
    """Kind, flags and content of each whole HTTP/2 frame."""
    at = 0
    while at + 9 <= len(content):
        size = int.from_bytes(content[at : at + 3], "big")
        if at + 9 + size > len(content):
            return
        yield content[at + 3], content[at + 4], bytes(content[at + 9 : at + 9 + size])
        at += 9 + size


def _is_own(kind: int, flags: int) -> bool:
    """An acknowledgement answers what another server has sent."""
    return kind == _HEADERS or not flags & _ACK


def _frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    return struct.pack(">I", len(content))[1:] + struct.pack(">BBI", kind, flags, stream) + content
