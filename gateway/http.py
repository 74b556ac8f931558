"""The OpenAI API over HTTP. Starlette routes; both endpoints that generate are plain ASGI, so that a token's way out is
one write.

An error before the first token is an ordinary HTTP answer, afterwards an event in the stream. A client that goes away
cancels everything it asked for."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from random import Random
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gateway import http_errors
from gateway.answer import Answer
from gateway.assets import Assets
from gateway.core import Core
from gateway.defects import told
from gateway.http_reply import ChatReply, CompletionReply, Reply
from gateway.openai_ask import Caller, ask_chat, ask_completion
from gateway.openai_fields import read_body
from gateway.openai_types import ChatRequest, CompletionRequest
from gateway.sse import DONE, encode, frame
from gateway.validation import accept, check_model
from mesh.errors import BatonError, BodyTooLarge, Cancelled, InvalidRequest, UnsupportedMedia

BODY_BYTES = 32 * 2**20
Clock = Callable[[], float]  # seconds since 1970, for `created`
Headers = list[tuple[bytes, bytes]]

_JSON = (b"content-type", b"application/json")
_SSE = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


class HttpApi:
    """`app` is the ASGI application."""

    def __init__(self, core: Core, assets: Assets, *, random: Random, clock: Clock) -> None:
        self._core, self._assets, self._random, self._clock = core, assets, random, clock
        self._created = int(clock())
        self.app = Starlette(
            routes=[
                Route("/v1/chat/completions", _Generate(self, self._chat), methods=["POST"]),
                Route("/v1/completions", _Generate(self, self._completion), methods=["POST"]),
                Route("/v1/models", self._models, methods=["GET"]),
                Route("/v1/models/{name:path}", self._models, methods=["GET"]),
                Route("/health", self._health, methods=["GET"]),
            ],
            exception_handlers={HTTPException: _http_exception},
        )

    async def _chat(self, raw: bytes, caller: Caller) -> Reply:
        body = read_body(raw, ChatRequest)
        caller = self._name(caller, body.request_id)
        check_model(self._core, body.model)
        asked = await ask_chat(body, self._assets, caller)
        accepted = accept(asked, self._core, self._assets, self._random)
        answer = Answer(accepted, self._core, self._assets.tokens)
        return ChatReply(body, [(asked, answer)], self._assets, created=int(self._clock()))

    async def _completion(self, raw: bytes, caller: Caller) -> Reply:
        body = read_body(raw, CompletionRequest)
        caller = self._name(caller, body.request_id)
        check_model(self._core, body.model)
        asked = await ask_completion(body, self._assets, caller)
        accepted = [accept(one, self._core, self._assets, self._random) for one in asked]
        answers: list[Answer] = []
        try:
            for one in accepted:
                answers.append(Answer(one, self._core, self._assets.tokens))
        except BatonError:
            for answer in answers:
                answer.cancel()
            raise
        pairs = list(zip(asked, answers, strict=True))
        return CompletionReply(body, pairs, self._assets, created=int(self._clock()))

    def _name(self, caller: Caller, in_body: str | None) -> Caller:
        if in_body is not None and not _REQUEST_ID.fullmatch(in_body):
            raise InvalidRequest("request_id", "request_id must be 1 to 128 printable ASCII characters without spaces")
        return Caller(caller.request_id if in_body is None else in_body, caller.traceparent)

    def caller(self, scope: Scope) -> Caller:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        given = headers.get(b"x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else f"{self._random.getrandbits(128):032x}"
        return Caller(request_id, headers.get(b"traceparent", ""))

    async def _models(self, request: Request) -> Response:
        name = request.path_params.get("name")
        try:
            served = self._core.models() if name is None else (check_model(self._core, name),)
        except BatonError as error:
            return Response(encode(http_errors.of(error)), error.http_status, media_type="application/json")
        context = min(self._assets.context_tokens, self._core.context_tokens or self._assets.context_tokens)
        entries = [
            {"id": each, "object": "model", "created": self._created, "owned_by": "baton", "max_model_len": context}
            for each in served
        ]
        answer = {"object": "list", "data": entries} if name is None else entries[0]
        return Response(encode(answer), media_type="application/json")

    async def _health(self, request: Request) -> Response:
        healthy = self._core.healthy()
        status = "ok" if healthy else "no worker can take a request"
        return Response(
            encode({"status": status, **self._core.tiers()}), 200 if healthy else 503, media_type="application/json"
        )


class _Generate:
    """One generating endpoint as an ASGI application."""

    def __init__(self, api: HttpApi, begin: Callable[[bytes, Caller], Awaitable[Reply]]) -> None:
        self._api, self._begin = api, begin

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = self._api.caller(scope)
        out = _Out(send, caller.request_id)
        try:
            reply = await self._begin(await _read(scope, receive), caller)
        except _Gone:
            return
        except Exception as error:
            await out.error(told(error, caller.request_id))
            return
        out.request_id = reply.request_id
        watch = asyncio.create_task(_watch(receive, reply))
        try:
            if reply.stream:
                async with aclosing(reply.frames()) as frames:
                    async for data in frames:
                        await out.event(data)
                await out.event(DONE, last=True)
            else:
                await out.whole(200, encode(await reply.whole()), [_JSON])
        except Cancelled as error:
            if not watch.done():  # it was not the client who cancelled
                await out.error(error)
        except OSError:  # the client is gone
            return
        except Exception as error:
            await out.error(told(error, reply.request_id))
        finally:
            reply.cancel()
            watch.cancel()


class _Out:
    """The answer's bytes; knows whether they began."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self.request_id = request_id
        self._begun = False

    async def whole(self, status: int, content: bytes, headers: Headers) -> None:
        await self._begin(status, [*headers, (b"content-length", str(len(content)).encode())])
        await self._send({"type": "http.response.body", "body": content})

    async def event(self, data: bytes, *, last: bool = False) -> None:
        if not self._begun:
            await self._begin(200, _SSE)
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})

    async def error(self, error: BatonError) -> None:
        if self._begun:
            await self.event(frame(http_errors.of(error)) + DONE, last=True)
        else:
            await self.whole(error.http_status, encode(http_errors.of(error)), [_JSON, *http_errors.headers(error)])

    async def _begin(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self._begun = True
        named = [*headers, (b"x-request-id", self.request_id.encode())]
        await self._send({"type": "http.response.start", "status": status, "headers": named})


class _Gone(Exception):
    """The client left before it had sent its request."""


async def _read(scope: Scope, receive: Receive) -> bytes:
    _check_form(dict(scope["headers"]))
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _Gone
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > BODY_BYTES:
            raise BodyTooLarge(f"the body is larger than {BODY_BYTES} bytes")
        if not message.get("more_body"):
            return b"".join(parts)


def _check_form(headers: dict[bytes, bytes]) -> None:
    kind = headers.get(b"content-type", b"application/json")
    if kind.split(b";")[0].strip().lower() != b"application/json":
        raise UnsupportedMedia(f"content-type is {kind.decode('latin-1')!r}, must be application/json")
    coding = headers.get(b"content-encoding", b"identity")
    if coding.strip().lower() not in (b"identity", b""):
        raise UnsupportedMedia(
            f"content-encoding is {coding.decode('latin-1')!r}: send the body as it is, uncompressed"
        )


async def _watch(receive: Receive, reply: Reply) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    reply.cancel()


async def _http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = {404: f"there is no {request.url.path} here", 405: f"{request.method} is not possible here"}
    message = what.get(error.status_code, error.detail)
    content: Any = http_errors.body(error.status_code, message, error.detail.upper().replace(" ", "_"))
    return Response(encode(content), error.status_code, headers=error.headers, media_type="application/json")
