"""Asks a gateway over HTTP, one try for each call."""

import asyncio
from collections.abc import Mapping

from cli.connecting.answer_text import message_of, printable
from cli.connecting.http_client import Connect, HttpClient, HttpResponse, RequestFailed, decoded
from cli.connecting.http_url import HttpUrl
from gateway.batches.outcome import BatchAnswer, NoAnswer
from gateway.batches.problems import BatchStopped
from gateway.batches.retrying import retry_after_seconds

MOST_ANSWER_BYTES = 1 << 30
HOPELESS_KINDS = ("TLS failed",)  # no later try would end otherwise
FINAL_KINDS = ("broken answer",)  # the same answer would come again


class HttpAsker:
    def __init__(
        self, url: HttpUrl, headers: Mapping[str, str], *, timeout_seconds: float, connect: Connect | None = None
    ) -> None:
        self._root = url.path.removesuffix("/v1")  # a line's url begins with /v1
        self._timeout_seconds = timeout_seconds  # time that one whole try may take
        self._http = HttpClient(url, headers, connect)

    async def ask(self, url: str, body: bytes) -> BatchAnswer:
        try:
            async with asyncio.timeout(self._timeout_seconds), self._http.send("POST", self._root + url, body) as got:
                return await _answer(got)
        except TimeoutError:
            raise NoAnswer("timeout", f"no whole answer after {self._timeout_seconds:g} s") from None
        except RequestFailed as error:
            if error.kind in HOPELESS_KINDS or error.kind.startswith("HTTP 3"):
                raise BatchStopped(f"{self._http.url}: {error}") from None
            raise NoAnswer(error.kind.replace(" ", "_"), str(error), final=error.kind in FINAL_KINDS) from None

    async def look(self, seconds: float) -> tuple[int, str]:
        """Status and error text with which the server answers a harmless call. RequestFailed if none is there."""
        status, answer = await self._http.fetch("GET", f"{self._root}/v1/models", seconds=seconds)
        return status, message_of(answer)

    def close(self) -> None:
        self._http.close()


async def _answer(response: HttpResponse) -> BatchAnswer:
    response.refuse_redirect()
    raw = await response.body(MOST_ANSWER_BYTES)
    body = decoded(raw)
    if not isinstance(body, dict):
        text = printable(raw[:400].decode(errors="replace")) or "the body is empty"
        if response.status < 400:
            raise RequestFailed("broken answer", f"status {response.status} with a body that is no JSON object: {text}")
        body = {"error": {"message": text, "code": response.status}}
    request_id = response.headers.get("x-request-id", "")
    return BatchAnswer(response.status, request_id, body, retry_after_seconds(response.headers))
