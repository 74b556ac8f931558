"""The gateway's receipts: begun before the first token, signed and kept behind the last, fetched by their id.

The key is read or made at the first use, and all work on the disk, hashing and signing is done in threads."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from pathlib import Path
from random import Random

import msgspec

from gateway.answers.answer import Answer
from gateway.answers.events import Event
from gateway.receipts.answers.fields import SentAnswer, covered
from gateway.receipts.answers.file import RECEIPT, SALT
from gateway.receipts.answers.reading import loads_slowly
from gateway.receipts.answers.stream import read_events
from gateway.receipts.canonical import Json
from gateway.receipts.draft import DraftHead, ReceiptDraft
from gateway.receipts.kept import KeptReceipts
from gateway.receipts.signing import KeyFileError, SigningKey, load_or_make
from gateway.validation.validate import ValidRequest
from mesh.errors import InvalidRequest

log = logging.getLogger("baton.gateway")

HEADER = b"x-baton-receipt"  # header of an answer: the id under which its receipt can be fetched when it has ended
MAX_CHOICES = 1024  # choices in one receipt, which stays below MAX_BYTES of gateway/receipts/canonical.py


class Receipts:
    def __init__(
        self, folder: Path, *, random: Random, clock: Callable[[], float], version: str, seconds: float, most_bytes: int
    ) -> None:
        """`random` draws ids, so nobody may be able to guess it."""
        self._key_file = folder / "key.pem"
        self._random = random
        self._clock = clock
        self._version = version
        self._kept = KeptReceipts(folder / "kept", seconds=seconds, most_bytes=most_bytes, clock=clock)
        self._key: SigningKey | None = None
        self._lost = 0  # receipts that could not be kept since the last that could
        self._key_lock = asyncio.Lock()

    async def key(self) -> SigningKey:
        async with self._key_lock:
            if self._key is None:
                self._key = await asyncio.to_thread(load_or_make, self._key_file)
            return self._key

    async def begin(self, valid: Sequence[ValidRequest], *, model: str, owner: str = "") -> ReceiptDraft:
        """A draft, once it is certain that it can be signed. `valid`: one request for each prompt. `owner`: who alone
        may fetch the receipt; empty: everyone who knows its id."""
        choices = sum(len(each.choices) + len(each.complete) for each in valid)
        if choices > MAX_CHOICES:
            raise InvalidRequest("receipt", f"receipt covers at most {MAX_CHOICES} choices; this request has {choices}")
        try:
            await self.key()
        except (OSError, KeyFileError) as error:
            log.error("receipts cannot be signed, see the setting receipts_folder: %s", error)
            what = "receipt cannot be honoured: this gateway has no key to sign it with; its log says why"
            raise InvalidRequest("receipt", what) from None
        id, request_id = f"rcpt-{self._random.getrandbits(128):032x}", valid[0].request.request_id
        return ReceiptDraft(DraftHead(id, request_id, model, int(self._clock()), self._version, owner), valid)

    async def finish(self, draft: ReceiptDraft, read: Callable[[], SentAnswer]) -> Json:
        """The members of an answer that has ended which sign it; from now on the receipt can be fetched. `read`: the
        answer as its client reads it."""
        key, salt = await self.key(), f"{self._random.getrandbits(128):032x}"

        def sign() -> Json:
            receipt = key.signed(draft.record() | {"answer": covered(read(), salt)})
            try:
                self._kept.keep(draft.head.id, draft.head.owner, msgspec.json.encode(receipt))
                if self._lost:
                    log.warning("receipts are kept again; %d could not be", self._lost)
                    self._lost = 0
            except OSError as error:  # on a full disk the client has its receipt nevertheless
                self._lost += 1
                if self._lost == 1:
                    log.warning("receipts cannot be kept, see the setting receipts_folder: %s", error)
            return {RECEIPT: receipt, SALT: salt}

        return await asyncio.to_thread(sign)

    async def find(self, id: str, owner: str = "") -> bytes | None:
        """The JSON of a receipt; None: there is none of this id, not any more, or not for this owner."""
        return await asyncio.to_thread(self._kept.find, id, owner)


async def begin_receipt(
    receipts: Receipts | None, wanted: bool | None, valid: Sequence[ValidRequest], *, model: str, owner: str = ""
) -> "OpenReceipt | None":
    """The receipt to be, or None where the client wants none. `receipts` is None in a gateway without. `owner`: see
    `Receipts.begin`; the page that serves receipts passes the same to `Receipts.find`."""
    if not wanted:
        return None
    if receipts is None:
        raise InvalidRequest("receipt", "receipt cannot be honoured: this gateway signs no receipts")
    return OpenReceipt(receipts, await receipts.begin(valid, model=model, owner=owner))


class OpenReceipt:
    """The receipt of an answer that a front door is about to send."""

    def __init__(self, receipts: Receipts, draft: ReceiptDraft) -> None:
        self._receipts, self._draft = receipts, draft
        self.id, self.noting = draft.head.id, draft.noting
        self._sent = list[bytes]()

    @property
    def header(self) -> tuple[bytes, bytes]:
        return HEADER, self.id.encode()

    def sent(self, frame: bytes) -> bytes:
        """Notes a part of a streamed answer."""
        self._sent.append(frame)
        return frame

    async def of_stream(self, *last: bytes) -> Json:
        """The members that sign a streamed answer; `last`: its events that are not sent yet."""
        self._sent += last
        return await self.of_parts(lambda sent: read_events(_whole_events(sent)))

    async def of_parts(self, read: Callable[[list[bytes]], SentAnswer]) -> Json:
        """The members that sign an answer whose parts `read` understands."""
        sent, self._sent = self._sent, []
        return await self.of(lambda: read(sent))

    async def of_whole(self, pieces: Callable[[], list[bytes]]) -> Json:
        """The members that sign a whole answer; `pieces`: its JSON."""
        return await self.of(lambda: SentAnswer(loads_slowly("".join(piece.decode() for piece in pieces()))))

    async def of(self, read: Callable[[], SentAnswer]) -> Json:
        return await self._receipts.finish(self._draft, read)


def noted_events(receipt: OpenReceipt | None, answer: Answer, number: int = 0) -> AsyncGenerator[Event, None]:
    """The events of the answer to this prompt; the receipt, where the client wants one, notes them."""
    return answer.events() if receipt is None else receipt.noting(number, answer.events())


def _whole_events(parts: Sequence[bytes]) -> Iterator[str]:
    """The events of a stream whose larger ones were sent in several parts. JSON has no line break of its own."""
    held = list[bytes]()
    for part in parts:
        held.append(part)
        if part.endswith(b"\n\n"):
            yield b"".join(held).decode()
            held.clear()
    yield b"".join(held).decode()
