"""Errors of `POST /v1/responses`: whole ones as elsewhere in OpenAI's API, in a stream the event response.failed."""

from typing import Any

from gateway.dialects.common.dialect import OpenAiDialect
from gateway.dialects.responses.reply import ResponsesReply
from mesh.errors import BatonError


class ResponsesDialect(OpenAiDialect):
    def ending(self, error: BatonError, request_id: str, reply: Any) -> bytes:
        assert isinstance(reply, ResponsesReply), "only a reply that has begun to stream fails in its stream"
        return reply.failure(error)
