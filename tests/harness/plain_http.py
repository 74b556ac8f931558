"""Clients over plain sockets that see what a library hides: each new connection, each reset, each `connection: close`.

They repeat nothing. A connection that the server has closed while it was idle is opened anew, as every client does."""

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Counted:
    """Outcomes of all requests of some clients."""

    counts: Counter[str] = field(default_factory=Counter)  # statuses, and errors by their names

    @property
    def failed(self) -> dict[str, int]:
        return {name: count for name, count in self.counts.items() if name.startswith(("error", "4", "5"))}


class PlainClient:
    """One client with at most one connection."""

    def __init__(self, address: str, seen: Counted) -> None:
        self._host, _, port = address.rpartition(":")
        self._port, self._seen = int(port), seen
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: dict[str, Any]) -> tuple[dict[str, str], bytes]:
        """Headers and body of the answer; both are empty after an error, which is counted."""
        try:
            headers, content = await self._post(path, json.dumps(body).encode())
        except (OSError, EOFError, ValueError) as error:
            self._seen.counts[f"error {type(error).__name__}"] += 1
            self.close()
            return {}, b""
        self._seen.counts[headers["status"]] += 1
        if headers.get("connection") == "close":
            self._seen.counts["closed"] += 1
            self.close()
        return headers, content

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
        self._streams = None

    async def _post(self, path: str, body: bytes) -> tuple[dict[str, str], bytes]:
        if self._streams is not None and self._streams[0].at_eof():
            self._seen.counts["ended idle"] += 1
            self.close()
        if self._streams is None:
            self._seen.counts["connections"] += 1
            self._streams = await asyncio.open_connection(self._host, self._port)
        reader, writer = self._streams
        head = f"POST {path} HTTP/1.1\r\nhost: {self._host}\r\ncontent-type: application/json\r\n"
        writer.write(head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:-1])}
        headers["status"] = lines[0].split()[1]
        if "content-length" in headers:
            return headers, await reader.readexactly(int(headers["content-length"]))
        content = b""
        while size := int(await reader.readline(), 16):
            content += await reader.readexactly(size + 2)
        await reader.readline()
        return headers, content
