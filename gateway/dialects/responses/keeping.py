"""Stored responses at `POST /v1/responses`: the one that a new response continues, and the new one when it has ended.

Steps 1 and 8 of a request's life over HTTP. A response is stored unless its client says `store = false`, as at OpenAI.
A response that cannot be stored is answered all the same, with `store` false."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.dialects.common.pieces import encode_pieces
from gateway.dialects.described.responses import ResponseAnswer
from gateway.dialects.responses.items import CONTINUED, listed_input
from gateway.dialects.responses.types import ResponsesRequest
from gateway.stored.database import StoreUnusable
from gateway.stored.responses import StoredResponse, StoredResponses, StoredState
from mesh.errors import InvalidRequest, Unavailable, brief

Json = dict[str, Any]
MAX_ID = 512  # characters; no id is longer
_OFF = "this gateway stores no responses (responses_mib = 0)"


@dataclass(frozen=True, slots=True)
class KeptResponse:
    """A response that will be stored when it has ended."""

    stored: StoredResponses
    owner: str
    before: Sequence[Json]  # items of the responses that it continues
    given: Any  # its own input

    async def keep(self, answer: ResponseAnswer, state: StoredState = StoredState.ENDED) -> bool:
        """Sets `store` to false in a response that cannot be kept."""

        def make() -> StoredResponse:
            own = listed_input(self.given, answer.id)
            items = msgspec.json.encode([*self.before, *own])
            whole = b"".join(encode_pieces(answer))
            return StoredResponse(answer.id, self.owner, whole, items, len(own), state)

        answer.store = await self.stored.keep(make)
        return answer.store


class ResponseKeeping:
    def __init__(self, stored: StoredResponses | None) -> None:
        """`stored` is None in a gateway that stores no responses."""
        self._stored = stored

    async def before(self, body: ResponsesRequest, owner: str) -> list[Json]:
        """The items of the response that this one continues, its output among them."""
        if self._stored is None:
            for name in ("store", "background", CONTINUED):
                if getattr(body, name):
                    raise InvalidRequest(name, f"{name} is not supported: {_OFF}; send the whole conversation in input")
        elif body.background and body.store is False:
            raise InvalidRequest("store", "store = false excludes background: the response would be lost")
        if body.background and body.stream:
            what = "background excludes stream: ask for the response until its status is another than in_progress"
            raise InvalidRequest("background", what)
        if body.previous_response_id is None:
            return []
        found = await self.find(body.previous_response_id, owner)
        if found is None:
            raise InvalidRequest(CONTINUED, f"{CONTINUED}: {self.missing(body.previous_response_id)}")
        return await asyncio.to_thread(items_behind, found)

    async def find(self, id: str, owner: str) -> StoredResponse | None:
        """The stored response, if this client may see one of this id."""
        if self._stored is None or len(id) > MAX_ID:
            return None
        with readable():
            return await self._stored.find(id, owner)

    async def delete(self, id: str, owner: str) -> bool:
        if self._stored is None or len(id) > MAX_ID:
            return False
        with readable():
            return await self._stored.delete(id, owner)

    def missing(self, id: str) -> str:
        """Why `find` found nothing."""
        why = "" if self._stored is not None else f": {_OFF}"
        return f"there is no stored response {brief(repr(id))}, or not any more{why}"

    def kept(self, body: ResponsesRequest, before: Sequence[Json], owner: str) -> KeptResponse | None:
        """The response to be, or None where it is not stored."""
        if self._stored is None or body.store is False:
            return None
        return KeptResponse(self._stored, owner, before, body.input)


@contextmanager
def readable() -> Iterator[None]:
    """A disk that cannot be used now is the gateway's trouble and no fault of the request."""
    try:
        yield
    except StoreUnusable as error:
        raise Unavailable(f"stored responses cannot be used now: {error}") from None


def items_behind(found: StoredResponse) -> list[Json]:
    """All items up to the end of a response. What cannot be continued is refused."""
    answer = msgspec.json.decode(found.answer)
    if answer["status"] not in ("completed", "incomplete"):
        what = f"{CONTINUED} names a response that is {answer['status']}; only one that has ended can be continued"
        raise InvalidRequest(CONTINUED, what)
    items: list[Json] = msgspec.json.decode(found.items)
    for item in answer["output"]:
        for content in item.get("content") or ():
            content.pop("logprobs", None)
        items.append(item)
    return items
