"""One endpoint that generates: it reads a request, begins its reply and sends it, whole or as a stream.

Steps 1 and 8 of a request's life over HTTP. An error before the first token is an ordinary HTTP answer, afterwards an
event in the stream. A client that goes away cancels all its choices."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Protocol

from starlette.types import Receive, Scope, Send

from gateway.core.client_errors import client_error
from gateway.dialects.common.deadline import deadline_of, named
from gateway.dialects.common.out import JSON, HttpOut
from gateway.dialects.common.pieces import encode_pieces
from gateway.dialects.common.plain_post import HttpHost
from gateway.dialects.endpoints.endpoint import ApiEndpoint
from gateway.dialects.openai.chat_reply import ChatReply
from gateway.dialects.openai.completion_reply import CompletionReply
from gateway.dialects.openai.reply import Reply
from gateway.dialects.openai.request import HttpCaller
from gateway.dialects.spoken import DIALECTS
from gateway.fairness.loop_turns import Turns
from gateway.http.errors import spent
from gateway.http.read import ClientGone
from gateway.http.writing import connection_of
from mesh.errors import Cancelled

BeginReply = Callable[[bytes, HttpCaller], Awaitable[Reply]]  # from the body of a request


class GeneratingHost(HttpHost, Protocol):
    keep_alive_seconds: float

    def caller(self, scope: Scope, operation: str) -> HttpCaller:
        """The head of a request: its trace begins."""


class GeneratingEndpoint:
    """One generating endpoint as an ASGI application."""

    def __init__(
        self,
        host: GeneratingHost,
        begin: BeginReply,
        row: ApiEndpoint,
    ) -> None:
        self._host = host
        self._begin = begin
        self._operation = row.operation
        self._dialect = DIALECTS[row.dialect]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = self._host.caller(scope, self._operation)
        out = HttpOut(
            send,
            connection_of(scope),
            caller.request_id,
            caller.trace,
            self._host.count_error,
            dialect=self._dialect,
        )
        try:
            await self._answer(out, caller, scope, receive)
        finally:
            out.close()
            caller.trace.ends(cancelled=not out.complete)

    async def _answer(self, out: HttpOut, caller: HttpCaller, scope: Scope, receive: Receive) -> None:
        try:
            caller = replace(caller, deadline=deadline_of(scope))
            async with self._host.bodies.read(scope, receive) as raw:
                await self._host.turns.first()  # requests that come together are parsed one in each pass of the loop
                with out.needed():
                    reply = await self._begin(raw, caller)
        except ClientGone:
            return
        except Exception as error:
            await out.error(spent(named(client_error(error, caller.request_id), scope), caller.trace))
            return
        out.request_id = reply.request_id
        watch = asyncio.create_task(_watch(receive, reply, self._host.turns))
        try:
            if reply.stream:
                out.keep_alive(self._host.keep_alive_seconds)
                if isinstance(reply, (ChatReply, CompletionReply)):
                    reply.shorten(out.at_once)
                # A task of its own: each token wakes it alone, and not every layer of the application around it.
                await asyncio.create_task(_stream(reply, out))
            else:
                await out.whole(200, encode_pieces(await reply.whole()), [JSON])
        except Cancelled as error:
            if not watch.done():  # the client is still there: the gateway cancelled
                await out.error(spent(error, caller.trace), reply)
        except OSError:  # the client is gone; of many that leave together one ends in each pass of the loop
            await self._host.turns.first()
        except Exception as error:
            await out.error(spent(named(client_error(error, reply.request_id), scope), caller.trace), reply)
        finally:
            reply.cancel()
            watch.cancel()


async def _stream(reply: Reply, out: HttpOut) -> None:
    async with aclosing(reply.frames()) as frames:
        async for data in frames:
            await out.event(data)
    await out.event(out.dialect.done, last=True)


async def _watch(receive: Receive, reply: Reply, turns: Turns) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    await turns.first()
    reply.cancel()
