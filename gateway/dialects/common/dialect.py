"""How the APIs of this gateway differ in what is no answer: errors, the last event of a stream, signs of life.

A path speaks one dialect. That of OpenAI stands here; gateway/dialects/anthropic/errors.py and
gateway/dialects/responses/errors.py have the others."""

from typing import Any, Protocol

from gateway.dialects.common.sse import DONE, frame
from gateway.http import errors as http_errors
from mesh.errors import BatonError

ALIVE = b": keep-alive\n\n"
REQUEST_ID = b"x-request-id"
SSE = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


class Dialect(Protocol):
    alive: bytes  # keeps an idle stream open
    done: bytes  # the last bytes of every stream
    id_headers: tuple[bytes, ...]  # headers with the request's id
    stream_head: list[tuple[bytes, bytes]]  # headers of an answer that is a stream

    def whole(self, error: BatonError, request_id: str) -> dict[str, Any]:
        """The body of an answer that is an error."""

    def ending(self, error: BatonError, request_id: str, reply: object) -> bytes:
        """The last bytes of a stream that an error ends; `reply` has sent the events before it."""


class OpenAiDialect:
    alive = ALIVE
    done = DONE
    id_headers: tuple[bytes, ...] = (REQUEST_ID,)
    stream_head = SSE

    def whole(self, error: BatonError, request_id: str) -> dict[str, Any]:
        return http_errors.error_body(error)

    def ending(self, error: BatonError, request_id: str, reply: object) -> bytes:
        return frame(http_errors.error_body(error)) + DONE


OPENAI = OpenAiDialect()
