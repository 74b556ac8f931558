"""Responses that are generated while no client waits: the gateway asks itself for them, and stores what comes.

Steps 1 and 8 of a request's life over HTTP. The request is checked before its client is told that it runs. Every
gateway process that shares the store finds the response; the process that generates it renews its beat, and notices
there that it was cancelled or deleted through another one."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec

from gateway.core.client_errors import client_error
from gateway.dialects.common.pieces import encode_pieces
from gateway.dialects.described.responses import ResponseAnswer
from gateway.dialects.inner_calls import InnerCalls
from gateway.dialects.responses.keeping import KeptResponse, ResponseKeeping, readable
from gateway.http.in_process_call import InProcessAnswer
from gateway.stored.database import StoreUnusable
from gateway.stored.responses import BEAT_SECONDS, ResponseRuns, StoredResponses, StoredState, failed
from mesh.errors import InvalidRequest, Unavailable

Json = dict[str, Any]
log = logging.getLogger("baton.gateway")

PATH = "/v1/responses"
NO_ROOM_SECONDS = 1.0  # between two tries of a response that finds no room
LATER = (429, 503)  # statuses that mean: try again
MOST_RUNNING = 1024  # responses of one process
MOST_BYTES = 256 * 2**20  # size of all their requests together, which are held until they end


class BackgroundResponses:
    def __init__(
        self, stored: StoredResponses | None, keeping: ResponseKeeping, calls: Callable[[], InnerCalls]
    ) -> None:
        """`calls` is asked when the first response begins."""
        self._stored, self._keeping, self._calls = stored, keeping, calls
        self._tasks = dict[tuple[str, str], asyncio.Task[None]]()
        self._begun = dict[tuple[str, str], int]()  # bytes of the requests of these and of those that are stored now
        self._leaves = False  # the process ends

    async def begin(self, raw: bytes, head: ResponseAnswer, kept: KeptResponse, request_id: str) -> "QueuedReply":
        """`raw`: the client's body; `head`: the response as it is now."""
        key = head.id, kept.owner
        if key in self._begun:
            raise _runs(head.id)
        if len(self._begun) >= MOST_RUNNING or sum(self._begun.values()) + len(raw) > MOST_BYTES:
            raise Unavailable("too many responses run in the background already; try again when some have ended")
        self._begun[key] = len(raw)
        try:
            if not await kept.keep(head, StoredState.RUNNING):
                raise Unavailable("background responses cannot be stored now: the disk does not take them")
            task = asyncio.create_task(self._generate(raw, head, kept.owner, request_id))
        except ResponseRuns:
            del self._begun[key]
            raise _runs(head.id) from None
        except BaseException:
            del self._begun[key]
            raise
        self._tasks[key] = task
        task.add_done_callback(lambda _: self._ended(key))
        return QueuedReply(request_id, head)

    def _ended(self, key: tuple[str, str]) -> None:
        del self._tasks[key], self._begun[key]

    async def cancel(self, id: str, owner: str) -> bytes | None:
        """The response as JSON; None: there is none. One that has ended stays as it is."""
        found = await self._keeping.find(id, owner)
        if found is None or self._stored is None:
            return None
        answer = msgspec.json.decode(found.answer)
        if not answer["background"]:
            what = f"{id} does not run in the background; close its connection to cancel it"
            raise InvalidRequest("id", what)
        if found.state is StoredState.ENDED:
            return found.answer
        content = msgspec.json.encode(answer | {"status": "cancelled"})
        with readable():
            ended = await self._stored.end(id, owner, content)
        self.deleted(id, owner)
        return content if ended else await self.cancel(id, owner)

    def deleted(self, id: str, owner: str) -> None:
        """The response is wanted no more; another process notices at its next beat."""
        if (task := self._tasks.get((id, owner))) is not None:
            task.cancel()

    async def aclose(self) -> None:
        self._leaves, tasks = True, list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _generate(self, raw: bytes, head: ResponseAnswer, owner: str, request_id: str) -> None:
        assert self._stored is not None, "what runs in the background is stored"
        asking = asyncio.create_task(self._ask(raw, owner, request_id))
        try:
            while not asking.done():
                await asyncio.wait([asking], timeout=BEAT_SECONDS)
                if not asking.done() and not await self._goes_on(head.id, owner):
                    return
            await self._end(head.id, owner, _ended(head, asking.result()))
        except asyncio.CancelledError:
            if self._leaves:
                begun = b"".join(encode_pieces(head))
                await self._end(head.id, owner, failed(begun, "the gateway that generated this response ended"))
            raise
        finally:
            asking.cancel()

    async def _end(self, id: str, owner: str, answer: bytes) -> None:
        assert self._stored is not None, "what runs in the background is stored"
        try:
            await self._stored.end(id, owner, answer)
        except StoreUnusable as error:
            log.warning("the response %s is lost: %s", id, error)

    async def _goes_on(self, id: str, owner: str) -> bool:
        assert self._stored is not None, "what runs in the background is stored"
        try:
            return await self._stored.beat(id, owner)
        except StoreUnusable:
            return True  # the disk may take the response when it has ended

    async def _ask(self, raw: bytes, owner: str, request_id: str) -> InProcessAnswer:
        """Ask again for as long as the gateway has no room: no client waits."""
        body = msgspec.json.encode(msgspec.json.decode(raw) | {"background": False, "store": False, "stream": False})
        while True:
            try:
                answer = await self._calls().post(PATH, body, owner=owner, request_id=request_id)
                if answer.status not in LATER:
                    return answer
            except Exception as error:
                found = client_error(error, request_id)
                if found.http_status not in LATER:
                    content = msgspec.json.encode({"error": {"message": found.message, "reason": found.reason}})
                    return InProcessAnswer(found.http_status, [], content)
            await asyncio.sleep(NO_ROOM_SECONDS)


class QueuedReply:
    """The answer to a request whose response will be generated."""

    stream = False

    def __init__(self, request_id: str, head: ResponseAnswer) -> None:
        self.request_id, self._head = request_id, head

    async def whole(self) -> ResponseAnswer:
        return self._head

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """No frame: the reply is never a stream."""
        for frame in tuple[bytes, ...]():
            yield frame

    def cancel(self) -> None:
        """The response goes on without its client."""


def _runs(id: str) -> InvalidRequest:
    what = f"request_id: the response {id} is generated already; give each request an id of its own"
    return InvalidRequest("request_id", what)


def _ended(head: ResponseAnswer, answer: InProcessAnswer) -> bytes:
    """The response as it is stored when it has ended."""
    try:
        content = msgspec.json.decode(answer.body)
    except msgspec.MsgspecError:
        content = {}
    if answer.status == 200 and "output" in content:
        return msgspec.json.encode(content | {"background": True, "store": True, "created_at": head.created_at})
    error = content.get("error") or {}
    failure = {
        "code": "invalid_prompt" if answer.status == 400 else "server_error",
        "message": error.get("message") or f"the gateway answered itself with status {answer.status}",
        "param": error.get("param"),
        "reason": error.get("reason") or "INTERNAL",
    }
    begun = msgspec.json.decode(b"".join(encode_pieces(head)))
    return msgspec.json.encode(begun | {"status": "failed", "error": failure})
