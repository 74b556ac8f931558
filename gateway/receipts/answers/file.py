"""A file with a receipt: the receipt alone, or a whole or streamed answer that carries it."""

import json
from dataclasses import dataclass
from typing import Any

from gateway.receipts.answers.fields import SentAnswer
from gateway.receipts.answers.reading import loads
from gateway.receipts.answers.stream import is_stream, read_events
from gateway.receipts.canonical import MAX_FILE_BYTES, NO_RECEIPT, ReceiptError, checked, exactly

RECEIPT, SALT = "receipt", "receipt_salt"

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class AnswerFile:
    receipt: Json
    answer: SentAnswer | None  # that the file has around the receipt
    salt: str | None


class _Taken:
    """Receipts and salts that were taken out of an answer."""

    def __init__(self) -> None:
        self.receipts, self.salts = list[Json](), list[Any]()

    def take(self, value: Json, text: str) -> None:
        """Out of an answer or an event of a stream; `text`: its JSON."""
        if (holder := _holder(value)) is not None and (exact := _holder(exactly(text))) is not None:
            self._add(holder, exact)

    def take_all(self, values: list[Any], text: str) -> None:
        """Out of a batch of answers."""
        if any(_holder(value) is not None for value in values):
            for value, same in zip(values, exactly(text), strict=True):
                if (holder := _holder(value)) is not None and (exact := _holder(same)) is not None:
                    self._add(holder, exact)

    def _add(self, holder: Json, exact: Json) -> None:
        holder.pop(RECEIPT)
        self.receipts.append(exact[RECEIPT])
        self.salts.append(holder.pop(SALT, None))


def _holder(value: Any) -> Json | None:
    """The JSON object that holds the receipt: the answer, an event of it, or the `response` or `meta_info` in one."""
    if isinstance(value, dict):
        for holder in (value, value.get("meta_info"), value.get("response")):
            if isinstance(holder, dict) and isinstance(holder.get(RECEIPT), dict):
                return holder
    return None


def read_answer(raw: bytes) -> AnswerFile:
    """ReceiptError where the file has no receipt, or several."""
    text, taken = text_of(raw), _Taken()
    if is_stream(text):
        answer = read_events([text], taken.take)
    else:
        value = loads(text)
        if isinstance(value, dict) and "format" in value:
            return AnswerFile(checked(exactly(text)), None, None)
        answer = SentAnswer(value)
        if isinstance(value, dict):
            taken.take(value, text)
        elif isinstance(value, list):
            taken.take_all(value, text)
    if not taken.receipts:
        raise ReceiptError(NO_RECEIPT)
    if len(taken.receipts) > 1:
        raise ReceiptError(f"the file has {len(taken.receipts)} receipts, so it can be read in several ways")
    salt = taken.salts[0]
    return AnswerFile(checked(taken.receipts[0]), answer, salt if isinstance(salt, str) else None)


def text_of(raw: bytes) -> str:
    """The text of a file in UTF-8, or in UTF-16 as some shells write it."""
    if len(raw) > MAX_FILE_BYTES:
        raise ReceiptError(f"the file has {len(raw)} bytes; at most {MAX_FILE_BYTES} are read")
    try:
        return raw.decode(json.detect_encoding(raw))
    except UnicodeDecodeError as error:
        raise ReceiptError(f"the file is not UTF-8: {error}") from None
