"""The OpenAI API over HTTP: steps 1 and 8 of a request's life.

Starlette routes requests; both endpoints that generate are plain ASGI, so that sending a token is one write. An error
before the first token is an ordinary HTTP answer, afterwards an event in the stream. A client that goes away cancels
all its choices."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from http import HTTPStatus
from random import Random
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from gateway.answer import Answer
from gateway.core import Core
from gateway.errors import client_error
from gateway.http import errors as http_errors
from gateway.http.connection import connection_of
from gateway.http.headers import SafeHeaders
from gateway.http.out import JSON, HttpOut
from gateway.http.read import ClientGone, read_body
from gateway.observability.traces import RecentTraces
from gateway.openai.body import parse_body
from gateway.openai.reply import ChatReply, CompletionReply, Reply
from gateway.openai.request import HttpCaller, parse_chat, parse_completion
from gateway.openai.sse import DONE, encode
from gateway.openai.types import ChatRequest, CommonRequest, CompletionRequest
from gateway.text.assets import Assets
from gateway.turns import Turns
from gateway.validation import is_request_id, validate, validate_model, validate_request_id
from mesh import semconv
from mesh.errors import BatonError, Cancelled, brief
from mesh.telemetry import Silent

UI = "/ui"  # where the page is, if it is on
Clock = Callable[[], float]  # seconds since 1970, for `created`


class HttpApi:
    """`app` is the ASGI application; `also` are pages besides the API."""

    def __init__(
        self,
        core: Core,
        assets: Assets,
        *,
        random: Random,
        clock: Clock,
        traces: RecentTraces | None = None,
        also: Sequence[BaseRoute] = (),
        keep_alive_seconds: float = 0.0,  # 0: no comments in idle streams
    ) -> None:
        self._core, self._assets, self._random, self._clock = core, assets, random, clock
        self._traces = traces or RecentTraces(Silent(), random=random)
        pages = {"/v1/models", "/health"} | {route.path for route in also if isinstance(route, Route)}
        self._shown = [path for path in (UI, "/v1/models", "/health", "/metrics") if path in pages]
        self._created, self.count_error = int(clock()), core.count_error
        self.keep_alive_seconds, self.turns = keep_alive_seconds, Turns()
        routed = Starlette(
            routes=[
                Route("/v1/chat/completions", _Generate(self, self._chat, semconv.CHAT), methods=["POST"]),
                Route("/v1/completions", _Generate(self, self._completion, semconv.TEXT_COMPLETION), methods=["POST"]),
                Route("/v1/models", self._models, methods=["GET"]),
                Route("/v1/models/{name:path}", self._models, methods=["GET"]),
                Route("/health", self._health, methods=["GET"]),
                Route("/", self._front, methods=["GET"]),
                *also,
            ],
            exception_handlers={HTTPException: _http_exception},
        )
        self.app = SafeHeaders(routed)

    async def _chat(self, raw: bytes, caller: HttpCaller) -> Reply:
        body = parse_body(raw, ChatRequest)
        caller = self._known(caller, body)
        request = await parse_chat(body, self._assets, caller)
        valid = validate(request, self._core, self._assets, self._random)
        answer = Answer(valid, self._core, self._assets.tokenizer)
        return ChatReply(body, [(request, answer)], self._assets, created=int(self._clock()))

    async def _completion(self, raw: bytes, caller: HttpCaller) -> Reply:
        body = parse_body(raw, CompletionRequest)
        caller = self._known(caller, body)
        requests = await parse_completion(body, self._assets, caller)
        valid = [validate(request, self._core, self._assets, self._random) for request in requests]
        answers: list[Answer] = []
        try:
            for each in valid:
                answers.append(Answer(each, self._core, self._assets.tokenizer))
        except BatonError:
            for answer in answers:
                answer.cancel()
            raise
        pairs = list(zip(requests, answers, strict=True))
        return CompletionReply(body, pairs, self._assets, created=int(self._clock()))

    def _known(self, caller: HttpCaller, body: CommonRequest) -> HttpCaller:
        """The caller, named by the body's request id where there is one; raises where the model is unknown."""
        trace = caller.trace
        if body.request_id is not None:
            trace.request_id = validate_request_id(body.request_id)
        trace.model = validate_model(self._core, body.model)
        trace.asked[semconv.REQUEST_STREAM] = bool(body.stream)
        return HttpCaller(trace.request_id, trace)

    def caller(self, scope: Scope, operation: str) -> HttpCaller:
        """The head of a request: its trace begins."""
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        given = headers.get(b"x-request-id", "")
        request_id = given if is_request_id(given) else f"{self._random.getrandbits(128):032x}"
        about = {
            semconv.HTTP_METHOD: scope["method"],
            semconv.HTTP_ROUTE: scope["path"],
            semconv.URL_PATH: scope["path"],
            semconv.URL_SCHEME: scope["scheme"],
        }
        server = f"{scope['method']} {scope['path']}"
        trace = self._traces.begin(server, headers.get(b"traceparent", ""), about, operation=operation)
        trace.request_id = request_id
        return HttpCaller(request_id, trace)

    async def _models(self, request: Request) -> Response:
        name = request.path_params.get("name")
        try:
            served = self._core.models() if name is None else (validate_model(self._core, name),)
        except BatonError as error:
            return Response(encode(http_errors.error_body(error)), error.http_status, media_type="application/json")
        context = min(self._assets.context_tokens, self._core.context_tokens or self._assets.context_tokens)
        entries = [
            {"id": each, "object": "model", "created": self._created, "owned_by": "baton", "max_model_len": context}
            for each in served
        ]
        answer = {"object": "list", "data": entries} if name is None else entries[0]
        return Response(encode(answer), media_type="application/json")

    async def _front(self, request: Request) -> Response:
        """Browsers go on to the page; programs read what there is to ask for."""
        if UI in self._shown and "text/html" in request.headers.get("accept", ""):
            return RedirectResponse(UI, 307)
        content = http_errors.body(404, f"this gateway has nothing at /; try {', '.join(self._shown)}", "NOT_FOUND")
        return Response(encode(content), 404, media_type="application/json")

    async def _health(self, request: Request) -> Response:
        healthy = self._core.healthy()
        status = "ok" if healthy else "no worker can take a request"
        return Response(
            encode({"status": status, **self._core.tiers()}), 200 if healthy else 503, media_type="application/json"
        )


class _Generate:
    """One generating endpoint as an ASGI application."""

    def __init__(self, api: HttpApi, begin: Callable[[bytes, HttpCaller], Awaitable[Reply]], operation: str) -> None:
        self._api, self._begin, self._operation = api, begin, operation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = self._api.caller(scope, self._operation)
        out = HttpOut(send, caller.request_id, caller.trace, self._api.count_error, connection=connection_of(scope))
        try:
            await self._answer(out, caller, scope, receive)
        finally:
            out.close()
            caller.trace.ends(cancelled=not out.complete)

    async def _answer(self, out: HttpOut, caller: HttpCaller, scope: Scope, receive: Receive) -> None:
        try:
            body = await read_body(scope, receive)
            await self._api.turns.next()  # requests that come together are parsed one in each pass of the loop
            reply = await self._begin(body, caller)
        except ClientGone:
            return
        except Exception as error:
            await out.error(client_error(error, caller.request_id))
            return
        out.request_id = reply.request_id
        watch = asyncio.create_task(_watch(receive, reply, self._api.turns))
        try:
            if reply.stream:
                out.keep_alive(self._api.keep_alive_seconds)
                # A task of its own: each token wakes it alone, and not every layer of the application around it.
                await asyncio.create_task(_stream(reply, out))
            else:
                await out.whole(200, encode(await reply.whole()), [JSON])
        except Cancelled as error:
            if not watch.done():  # the client is still there: the gateway cancelled
                await out.error(error)
        except OSError:  # the client is gone; of many that leave together one ends in each pass of the loop
            await self._api.turns.next()
        except Exception as error:
            await out.error(client_error(error, reply.request_id))
        finally:
            reply.cancel()
            watch.cancel()


async def _stream(reply: Reply, out: HttpOut) -> None:
    async with aclosing(reply.frames()) as frames:
        async for data in frames:
            await out.event(data)
    await out.event(DONE, last=True)


async def _watch(receive: Receive, reply: Reply, turns: Turns) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    await turns.next()
    reply.cancel()


async def _http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = {
        404: f"this gateway has no {brief(request.url.path)}",
        405: f"{brief(request.url.path)} does not support {request.method}",
    }
    message = what.get(error.status_code, error.detail)
    content: Any = http_errors.body(error.status_code, message, HTTPStatus(error.status_code).name)
    return Response(encode(content), error.status_code, headers=error.headers, media_type="application/json")
