"""`POST /v1/files`: a form with a file, written to the disk as it comes."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

from starlette.types import Receive, Scope, Send

from gateway.batches.records import PURPOSES, FileRecord
from gateway.batches.store import BatchStore, NoRoom
from gateway.core.client_errors import client_error
from gateway.dialects.common.headers import REQUEST_ID
from gateway.dialects.common.out import JSON, HttpOut
from gateway.dialects.common.plain_post import HttpHost
from gateway.dialects.common.sse import encode
from gateway.dialects.guard import admission_of
from gateway.http.errors import shown_names
from gateway.http.multipart import FormPart, MultipartReader
from gateway.http.read import ClientGone
from gateway.http.writing import connection_of
from gateway.stored.database import StoreUnusable
from gateway.tenants.admission import OPEN
from gateway.tracing.record import unrecorded
from mesh.errors import BodyTooLarge, InvalidRequest, Unavailable, brief

WRITE_BYTES = 1 << 20  # that come before they are written together
MOST_FIELD = 4096  # bytes of a field that is no file
MOST_NAME = 255


class FileUpload:
    """The endpoint as an ASGI application."""

    def __init__(self, host: HttpHost, store: BatchStore) -> None:
        self._host, self._store = host, store

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        id, connection = scope[REQUEST_ID], connection_of(scope)
        out = HttpOut(send, connection, id, unrecorded(), self._host.count_error)
        try:
            record, ignored = await self._taken(scope, receive)
            headers = [(b"x-baton-ignored", shown_names(ignored))] if ignored else []
            await out.whole(200, encode(record), [JSON, *headers])
        except (ClientGone, ConnectionError):
            return
        except Exception as error:
            await out.error(client_error(_as_client_sees(error), id))

    async def _taken(self, scope: Scope, receive: Receive) -> tuple[FileRecord, list[str]]:
        """The stored file, and the names of the form's fields without effect."""
        headers = dict(scope["headers"])
        if headers.get(b"content-encoding", b"identity").strip().lower() not in (b"", b"identity"):
            raise InvalidRequest(None, "content-encoding: send the form uncompressed")
        reader = MultipartReader(headers.get(b"content-type", b""))
        descriptor, path = await asyncio.to_thread(self._store.new_content)
        try:
            owner = admission_of(scope, OPEN).tenant
            form = _Form(descriptor, self._store.bounds.most(owner))
            async for data in _chunks(receive):
                await form.feed(reader, data)
            reader.close()
            await form.flush()
            name, purpose = form.checked()
            return await self._store.add_file(owner, path, name=name, purpose=purpose), form.ignored
        finally:
            os.close(descriptor)
            await asyncio.to_thread(_remove, path)


class _Form:
    """The form as far as it has come; the file's content goes to the disk."""

    def __init__(self, descriptor: int, most_bytes: int) -> None:
        self._descriptor, self._most_bytes = descriptor, most_bytes
        self._fields = dict[str, bytearray]()
        self._filename: str | None = None
        self._part: FormPart | None = None
        self._held, self._size = bytearray(), 0

    async def feed(self, reader: MultipartReader, data: bytes) -> None:
        for found in reader.feed(data):
            if isinstance(found, FormPart):
                self._begin(found)
            else:
                self._take(found)
        if len(self._held) >= WRITE_BYTES:
            await self.flush()

    def _begin(self, part: FormPart) -> None:
        self._part = part
        if part.name == "file":
            if self._filename is not None:
                raise InvalidRequest("file", "file stands in the form twice; send one file at a time")
            self._filename = part.filename or "file"
        elif part.filename is not None:
            raise InvalidRequest(brief(part.name), f"{brief(part.name)}: a file must have the name `file` in the form")
        else:
            self._fields[brief(part.name)] = bytearray()

    def _take(self, data: bytes) -> None:
        part = self._part
        assert part is not None, "bytes belong to a part"
        if part.name != "file":
            field = self._fields[brief(part.name)]
            field += data
            if len(field) > MOST_FIELD:
                raise InvalidRequest(brief(part.name), f"{brief(part.name)} is longer than {MOST_FIELD} bytes")
            return
        self._held += data
        self._size += len(data)
        if self._size > self._most_bytes:
            most = f"{self._most_bytes / 2**20:g} MiB"
            raise BodyTooLarge(
                f"file is larger than {most}, what your files together may have (files_mib, files_share)"
            )

    async def flush(self) -> None:
        data, self._held = bytes(self._held), bytearray()
        await asyncio.to_thread(_write, self._descriptor, data)

    @property
    def ignored(self) -> list[str]:
        """Names of fields without effect; of `expires_after[seconds]` it is `expires_after`."""
        return [name.partition("[")[0] for name in self._fields if name != "purpose"]

    def checked(self) -> tuple[str, str]:
        """Name and purpose of the file."""
        if self._filename is None:
            raise InvalidRequest("file", "file is missing: send it as a part of the form with this name")
        if not self._size:
            raise InvalidRequest("file", "file is empty")
        given = self._fields.get("purpose")
        purpose = "" if given is None else given.decode(errors="replace")
        if purpose not in PURPOSES:
            what = "missing" if given is None else brief(repr(purpose))
            raise InvalidRequest("purpose", f"purpose is {what}; it must be one of {', '.join(PURPOSES)}")
        return os.path.basename(self._filename)[:MOST_NAME] or "file", purpose


async def _chunks(receive: Receive) -> AsyncIterator[bytes]:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        yield message.get("body", b"")
        if not message.get("more_body"):
            return


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def _as_client_sees(error: Exception) -> Exception:
    if isinstance(error, NoRoom):
        bound = "your files together may have no more of the gateway's disk (files_share)"
        whose = bound if error.share else "all files together may have no more (files_mib)"
        return BodyTooLarge(f"file does not fit: {whose}; delete some with DELETE /v1/files/ID")
    if isinstance(error, OSError | StoreUnusable):
        why = error.strerror or error if isinstance(error, OSError) else error  # without the path
        return Unavailable(f"files cannot be stored now: {why}")
    return error
