"""Asks one request of a batch: an inner call of the gateway, as the tenant whose batch it is."""

from collections.abc import Callable

import msgspec

from gateway.batches.outcome import BatchAnswer, NoAnswer
from gateway.batches.problems import BatchStopped
from gateway.batches.retrying import retry_after_seconds
from gateway.core.client_errors import client_error
from gateway.dialects.inner_calls import InnerCalls
from mesh.errors import RateLimited, Unauthenticated


class InnerAsker:
    def __init__(self, calls: InnerCalls, owner: str, draw_id: Callable[[], str]) -> None:
        self._calls, self._owner, self._draw_id = calls, owner, draw_id

    async def ask(self, url: str, body: bytes) -> BatchAnswer:
        request_id = self._draw_id()
        try:
            found = await self._calls.post(url, body, owner=self._owner, request_id=request_id)
        except Unauthenticated as error:
            raise BatchStopped(error.message) from None
        except RateLimited as error:
            raise NoAnswer("rate_limited", error.message) from None
        except Exception as error:
            raise NoAnswer("no_answer", client_error(error, request_id).message) from None
        try:
            content = msgspec.json.decode(found.body)
        except msgspec.MsgspecError:
            raise NoAnswer("no_answer", f"the gateway answered itself with status {found.status}") from None
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in found.headers}
        return BatchAnswer(found.status, request_id, content, retry_after_seconds(headers))
