"""An OpenAI server inside the test's event loop, without sockets: under virtual time all its delays are exact. For
tests of the whole command `listening` puts it behind a socket.

A test either describes an ordinary server (`FakeOpenAi`) or writes the bytes of each answer itself."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from cli.connecting.http_client import Connect
from cli.connecting.http_url import HttpUrl
from cli.load.target import LoadTarget

URL = HttpUrl(False, "fake", 80, "/v1")


class Hangup(Exception):
    """The server closes the connection here."""


@dataclass(frozen=True)
class FakeRequest:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def fields(self) -> Any:
        return json.loads(self.body)


Answers = Callable[[FakeRequest], AsyncIterator[bytes]]


class FakeConnection:
    """The client's writer. Each complete request starts an answer, whose bytes go to the client's reader."""

    def __init__(self, reader: asyncio.StreamReader, answers: Answers) -> None:
        self._reader, self._answers = reader, answers
        self._data = b""
        self._tasks: set[asyncio.Task[None]] = set()
        self.closed = False

    def write(self, data: bytes) -> None:
        self._data += data
        head, end, rest = self._data.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
        if end and len(rest) >= int(headers.get("content-length", 0)):
            method, path, _ = lines[0].split(" ")
            self._data = b""
            task = asyncio.create_task(self._serve(FakeRequest(method, path, headers, rest)))
            self._tasks.add(task)

    async def drain(self) -> None: ...

    def close(self) -> None:
        self.closed = True

    async def _serve(self, request: FakeRequest) -> None:
        try:
            async for piece in self._answers(request):
                self._reader.feed_data(piece)
        except Hangup:
            self._reader.feed_eof()


def connector(answers: Answers, opened: list[FakeConnection] | None = None) -> Connect:
    async def connect() -> Any:
        reader = asyncio.StreamReader()
        connection = FakeConnection(reader, answers)
        if opened is not None:
            opened.append(connection)
        return reader, connection

    return connect


def target(
    answers: Answers, *, timeout_seconds: float = 60.0, opened: list[FakeConnection] | None = None
) -> LoadTarget:
    return LoadTarget(URL, headers={}, timeout_seconds=timeout_seconds, connect=connector(answers, opened))


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def text_event(text: str = "x", finish: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "text": text, "finish_reason": finish}]})


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def whole(status: int, value: object, *headers: str) -> bytes:
    body = json.dumps(value).encode()
    lines = [f"HTTP/1.1 {status} X", "content-type: application/json", f"content-length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"
END = chunked(DONE) + b"0\r\n\r\n"


@dataclass
class FakeOpenAi:
    """One request at a time, if `serial`: the others wait inside the server. A word of a prompt costs `word_tokens`."""

    first_seconds: float = 0.1
    gap_seconds: float = 0.02
    prompt_token_seconds: float = 0.0
    serial: bool = False
    usage: bool = True
    context: int | None = 4096
    takes_ids: bool = True
    refused: tuple[str, ...] = ()  # fields
    tokenize: bool = False
    word_tokens: int = 1
    overhead_tokens: int = 0
    tiers: tuple[int, int] | None = None
    requests: list[FakeRequest] = field(default_factory=list)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def answers(self, request: FakeRequest) -> AsyncIterator[bytes]:
        self.requests.append(request)
        match request.path:
            case "/v1/models":
                entry = {"id": "fake"} | ({"max_model_len": self.context} if self.context else {})
                yield whole(200, {"data": [entry]})
            case "/health" if self.tiers:
                yield whole(200, {"prefill": self.tiers[0], "decode": self.tiers[1]})
            case "/tokenize" if self.tokenize:
                yield whole(200, {"tokens": list(range(1000, 1050))})
            case "/v1/completions" | "/v1/chat/completions":
                async for piece in self._generate(request.fields):
                    yield piece
            case _:
                yield whole(404, {"error": {"message": "not here"}})

    async def _generate(self, fields: dict[str, Any]) -> AsyncIterator[bytes]:
        prompt = fields["messages"][0]["content"] if "messages" in fields else fields["prompt"]
        wrong = [name for name in self.refused if name in fields]
        if wrong or (not isinstance(prompt, str) and not self.takes_ids):
            yield whole(400, {"error": {"message": f"{wrong or 'prompt'} is not supported"}})
            return
        length = len(prompt.split()) * self.word_tokens if isinstance(prompt, str) else len(prompt)
        if self.serial:
            await self.lock.acquire()
        await asyncio.sleep(self.first_seconds + length * self.prompt_token_seconds)
        yield STREAM
        for position in range(fields["max_tokens"]):
            if position:
                await asyncio.sleep(self.gap_seconds)
            yield chunked(text_event(finish="length" if position + 1 == fields["max_tokens"] else None))
        if self.usage:
            usage = {"prompt_tokens": length + self.overhead_tokens, "completion_tokens": fields["max_tokens"]}
            yield chunked(event({"choices": [], "usage": usage}))
        if self.serial:
            self.lock.release()
        yield END


@asynccontextmanager
async def listening(
    answers: Answers, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None, port: int = 0
) -> AsyncIterator[str]:
    """The same answers behind a real socket; yields the host and port as an URL writes them."""

    running: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, Hangup):
                while True:
                    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
                    method, path, _ = head[0].split(" ")
                    body = await reader.readexactly(int(headers.get("content-length", 0)))
                    async for piece in answers(FakeRequest(method, path, headers, body)):
                        writer.write(piece)
                        await writer.drain()
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        running.add(asyncio.create_task(serve(reader, writer)))

    server = await asyncio.start_server(accept, host, port, ssl=tls)
    try:
        port = server.sockets[0].getsockname()[1]
        yield f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    finally:
        server.close()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
