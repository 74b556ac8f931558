"""Reads the body of a request: its coding, its type and its size are checked before anything parses it.

A compressed body counts as what it inflates to, and is inflated in slices between which the event loop serves others.
All bodies that the gateway holds at once have a limit together."""

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.types import Receive, Scope

from mesh.config.door_config import DoorConfig
from mesh.errors import BodyTooLarge, InvalidRequest, Unavailable, UnsupportedMedia, brief

SMALL_BYTES = 64 * 1024  # the bytes of a body up to here do not count as held
HELD_BODIES = 8  # bodies of the largest size that the gateway holds at once
INFLATED_SLICE = 256 * 1024
GZIP = 16 + zlib.MAX_WBITS
CODINGS = (b"", b"identity", b"gzip", b"x-gzip")


class ClientGone(Exception):
    """The client left before it had sent its request."""


class BodyReader:
    def __init__(self, limits: DoorConfig, on_large: Callable[[], None] = lambda: None) -> None:
        """`on_large` is called when a large body is no longer held."""
        self._limits, self._on_large = limits, on_large
        self._held = 0  # bytes of bodies that are being read or parsed

    @asynccontextmanager
    async def read(self, scope: Scope, receive: Receive) -> AsyncIterator[bytes]:
        """The body; it counts as held while the context lasts."""
        held = _Held()
        try:
            yield await self._read(dict(scope["headers"]), receive, held)
        finally:
            self._held -= held.counted
            if held.counted:
                self._on_large()

    async def _read(self, headers: dict[bytes, bytes], receive: Receive, held: "_Held") -> bytes:
        coding = _check_headers(headers)
        if int(headers.get(b"content-length", b"0")) > self._limits.body_bytes:
            raise self._too_large()
        inflater = zlib.decompressobj(GZIP) if coding in (b"gzip", b"x-gzip") else None
        parts: list[bytes] = []
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            data = message.get("body", b"")
            if inflater is None:
                self._take(data, parts, held)
            else:
                await self._inflate(data, inflater, parts, held)
            if not message.get("more_body"):
                break
        if inflater is not None and not inflater.eof:
            raise InvalidRequest(None, "the body ends before its gzip data does")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _inflate(self, data: bytes, inflater: "zlib._Decompress", parts: list[bytes], held: "_Held") -> None:
        while data:
            try:
                self._take(inflater.decompress(data, INFLATED_SLICE), parts, held)
            except zlib.error as error:
                raise InvalidRequest(None, f"the body is not valid gzip data: {error}") from None
            if inflater.unused_data:
                raise InvalidRequest(None, "the body goes on after its gzip data")
            data = inflater.unconsumed_tail
            if data:
                await asyncio.sleep(0)

    def _take(self, data: bytes, parts: list[bytes], held: "_Held") -> None:
        if data:
            parts.append(data)
        held.size += len(data)
        if held.size > self._limits.body_bytes:
            raise self._too_large()
        more = max(0, held.size - SMALL_BYTES) - held.counted
        if more > 0:
            if self._held + more > HELD_BODIES * self._limits.body_bytes:
                raise Unavailable("the gateway reads too many large bodies at once; try again later")
            self._held += more
            held.counted += more

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(f"the body is larger than {self._limits.body_mib} MiB, the gateway's limit (body_mib)")


@dataclass(slots=True)
class _Held:
    """Bytes of one body."""

    size: int = 0  # bytes read so far
    counted: int = 0  # bytes among these that count as held by the gateway


def _check_headers(headers: dict[bytes, bytes]) -> bytes:
    """The coding of the body."""
    kind = headers.get(b"content-type", b"application/json")
    if kind.split(b";")[0].strip().lower() != b"application/json":
        raise UnsupportedMedia(f"content-type is {brief(kind.decode('latin-1'))!r}; it must be application/json")
    coding = headers.get(b"content-encoding", b"identity").strip().lower()
    if coding not in CODINGS:
        given = brief(headers[b"content-encoding"].decode("latin-1"))
        raise UnsupportedMedia(f"content-encoding is {given!r}: send the body as gzip or uncompressed")
    return coding
