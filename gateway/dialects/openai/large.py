"""Request bodies on their way from bytes to a parsed value: small ones here, large ones in another process.

Parsing holds Python's lock, in a thread too, so 20 MB of JSON would stop every stream of this gateway. A process of its
own (gateway/dialects/openai/parsing.py) parses large bodies, and smaller ones of many values, one at a time and the
smallest first, with limits on time and memory. Long texts and lists of token ids come back as bytes, and a thread makes
values of them piece by piece."""

import asyncio
import heapq
from array import array
from codecs import getincrementaldecoder
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, TypeVar, get_type_hints

import msgspec

from gateway.dialects.openai.body import parse_body
from gateway.dialects.openai.limits import check_limits
from gateway.dialects.openai.memory import give_back
from gateway.dialects.openai.parsing import IDS, NUMBER, TOO_MUCH_MEMORY, ParsedBody, ParseOrder, prepare
from gateway.helpers.process import HelperDied, HelperProcess
from mesh.config.door_config import DoorConfig
from mesh.errors import BodyTooLarge, ContextTooLong, InvalidRequest

SMALL_BYTES = 64 * 1024  # a body of this size is parsed in some milliseconds, whatever it holds
LARGE_BYTES = 1024 * 1024  # and one of this size if it is mostly text
TEXT_MARKS = 4096  # commas and brackets of a body that is mostly text, at most
TRIM_SECONDS = 2.0  # after the last large body, its memory goes back to the system
PARSE_SECONDS = 30.0
TEXT_PIECE = 256 * 1024

Body = TypeVar("Body", bound=msgspec.Struct)


class BodyParser:
    """Parses the bodies of one gateway."""

    def __init__(self, limits: DoorConfig, context_tokens: Callable[[], int]) -> None:
        self._limits, self._context_tokens = limits, context_tokens
        self._turns: list[tuple[int, int, asyncio.Future[None]]] = []  # waiting bodies by size
        self._numbers, self._busy = count(), False
        self._helper = HelperProcess(prepare)
        self._trim: asyncio.TimerHandle | None = None

    async def parse(self, raw: bytes, kind: type[Body], ignored: list[str]) -> Body:
        if is_costly(raw):
            return await self._parse_elsewhere(raw, kind, ignored)
        body = parse_body(raw, kind, strict=self._limits.strict_fields, ignored=ignored)
        check_limits(body, self._limits, self._context_tokens())
        return body

    def trim_later(self) -> None:
        """The memory of a large body goes back to the system soon, whether it was parsed or refused."""
        if self._trim is not None:
            self._trim.cancel()
        loop = asyncio.get_running_loop()
        self._trim = loop.call_later(TRIM_SECONDS, lambda: loop.run_in_executor(None, give_back))

    async def aclose(self) -> None:
        if self._trim is not None:
            self._trim.cancel()
        await self._helper.aclose()

    async def _parse_elsewhere(self, raw: bytes, kind: type[Body], ignored: list[str]) -> Body:
        order = ParseOrder(
            module=kind.__module__,
            kind=kind.__qualname__,
            strict=self._limits.strict_fields,
            context_tokens=self._context_tokens(),
            choices=self._limits.choices,
            prompt_tokens=self._limits.prompt_tokens,
            stop_strings=self._limits.stop_strings,
        )
        async with self._turn(len(raw)):
            try:
                parsed = await self._helper.ask(msgspec.json.encode(order), raw, read=_decoded, seconds=PARSE_SECONDS)
            except TimeoutError:
                raise BodyTooLarge(f"the body took longer than {PARSE_SECONDS:g} s to parse: send less") from None
            except HelperDied:
                parsed = ParsedBody(error=BodyTooLarge.__name__, message=TOO_MUCH_MEMORY)
            self.trim_later()
        if parsed.error:
            raise _error(parsed)
        ignored.extend(parsed.ignored)
        types = get_type_hints(kind)
        return kind(**parsed.whole, **{name: msgspec.convert(at, types[name]) for name, at in parsed.fields.items()})

    @asynccontextmanager
    async def _turn(self, size: int) -> AsyncIterator[None]:
        """Only one body is parsed at a time; of those that wait, the smallest is next."""
        if self._busy:
            waits = asyncio.get_running_loop().create_future()
            heapq.heappush(self._turns, (size, next(self._numbers), waits))
            try:
                await waits
            except asyncio.CancelledError:
                if waits.done() and not waits.cancelled():
                    self._next()
                raise
        self._busy = True
        try:
            yield
        finally:
            self._next()

    def _next(self) -> None:
        self._busy = False
        while self._turns:
            waits = heapq.heappop(self._turns)[2]
            if not waits.done():
                self._busy = True
                waits.set_result(None)
                return


def is_costly(raw: bytes) -> bool:
    """Whether the body may take longer to parse than the event loop can spare."""
    if len(raw) <= SMALL_BYTES:
        return False
    return len(raw) > LARGE_BYTES or raw.count(b",") + raw.count(b"[") + raw.count(b"{") > TEXT_MARKS


def _decoded(answer: bytes) -> ParsedBody:
    return msgspec.msgpack.decode(answer, type=ParsedBody, ext_hook=unpack)


def unpack(code: int, data: memoryview) -> Any:
    """A packed value; other threads run between its pieces."""
    if code == IDS:
        ids = array("q", bytes(data))
        found = list[int]()
        for first in range(0, len(ids), TEXT_PIECE):
            found += ids[first : first + TEXT_PIECE].tolist()
        return found
    if code == NUMBER:
        return int(bytes(data))
    decoder, pieces = getincrementaldecoder("utf-8")(), list[str]()
    for first in range(0, len(data), TEXT_PIECE):
        pieces.append(decoder.decode(bytes(data[first : first + TEXT_PIECE])))
    return "".join(pieces)


def _error(parsed: ParsedBody) -> InvalidRequest | ContextTooLong | BodyTooLarge:
    if parsed.error == ContextTooLong.__name__:
        return ContextTooLong(parsed.param or "", parsed.message)
    if parsed.error == BodyTooLarge.__name__:
        return BodyTooLarge(parsed.message)
    return InvalidRequest(parsed.param, parsed.message)
