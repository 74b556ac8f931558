"""A POST that is answered at once: no stream, no choices, no trace. Its body is read and refused like every other."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from starlette.types import Receive, Scope, Send

from gateway.core.client_errors import client_error
from gateway.dialects.common.dialect import OPENAI, Dialect
from gateway.dialects.common.headers import MORE_HEADERS, REQUEST_ID
from gateway.dialects.common.out import JSON, HttpOut
from gateway.dialects.guard import admission_of
from gateway.dialects.openai.request import HttpCaller
from gateway.fairness.loop_turns import Turns
from gateway.http.read import BodyReader, ClientGone
from gateway.http.writing import connection_of
from gateway.tracing.record import unrecorded


class HttpHost(Protocol):
    """The parts of the HTTP API that an answer needs."""

    bodies: BodyReader
    turns: Turns
    count_error: Callable[..., None]


class AnsweredAtOnce:
    """One endpoint as an ASGI application. `answer` turns a body into JSON."""

    def __init__(
        self, host: HttpHost, answer: Callable[[bytes, HttpCaller], Awaitable[bytes]], *, dialect: Dialect = OPENAI
    ) -> None:
        self._host, self._answer, self._dialect = host, answer, dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = HttpCaller(scope[REQUEST_ID], unrecorded(), scope[MORE_HEADERS])
        caller.trace.admission = admission_of(scope, caller.trace.admission)
        out = HttpOut(
            send, connection_of(scope), caller.request_id, caller.trace, self._host.count_error, dialect=self._dialect
        )
        try:
            async with self._host.bodies.read(scope, receive) as raw:
                await self._host.turns.next()
                with out.needed():
                    content = await self._answer(raw, caller)
            await out.whole(200, content, [JSON])
        except (ClientGone, OSError):
            return
        except Exception as error:
            await out.error(client_error(error, caller.request_id))
