"""Checks a receipt and the answer around it without asking a mesh: says who signed them, and which field was changed.

`baton receipt` prints this, and `baton replay` begins with it. Both end with the same statuses."""

import json
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any

from gateway.grpc.whole import read_messages
from gateway.receipts.answers.fields import AnswerDifference, changes
from gateway.receipts.answers.file import AnswerFile, read_answer, text_of
from gateway.receipts.canonical import checked, exactly, unique
from gateway.receipts.shape import Receipt, shaped
from gateway.receipts.signing import check_signature

NO_KEY = "this check has no key to compare with, so it cannot judge who signed; give the key with --key"
NOT_COVERED = (
    "the receipt is of an older gateway and covers the tokens alone: whether the answer's text and its other fields "
    "were changed cannot be judged"
)


class CheckStatus(IntEnum):
    """Exit statuses of both commands."""

    RIGHT = 0
    WRONG = 1  # something was changed, or differs
    NOTHING = 2  # nothing was compared
    NO_KEY = 3  # all is right, but nobody said whose signature it must be
    NOT_COVERED = 4  # the receipt is right, but says nothing about the answer around it


class AnswerState(StrEnum):
    NONE = "none"  # the file has the receipt alone
    EQUAL = "equal"  # as it was signed
    CHANGED = "changed"
    NOT_COVERED = "not covered"


@dataclass(frozen=True, slots=True)
class CheckedReceipt:
    receipt: Receipt
    signer: str  # the public key that signed it
    trusted: bool  # the user has given this key
    answer: AnswerState
    changes: list[AnswerDifference]

    @property
    def status(self) -> CheckStatus:
        if self.answer is AnswerState.CHANGED:
            return CheckStatus.WRONG
        if self.answer is AnswerState.NOT_COVERED:
            return CheckStatus.NOT_COVERED
        return CheckStatus.RIGHT if self.trusted else CheckStatus.NO_KEY

    def warnings(self) -> list[str]:
        """Says what this check could not judge."""
        found = [NOT_COVERED] if self.answer is AnswerState.NOT_COVERED else []
        return found if self.trusted else [*found, f"signed by {self.signer}: {NO_KEY}"]

    def fields(self) -> dict[str, Any]:
        about = {"key": self.signer, "trusted": self.trusted, "answer": self.answer.value}
        return about | {"changes": [{"field": each.path, "how": each.how} for each in self.changes]}


def check_file(file: AnswerFile, key: str | None) -> CheckedReceipt:
    """ReceiptError where the signature is not right, or not by `key`."""
    signer, receipt = check_signature(file.receipt, key), shaped(file.receipt)
    state, found = AnswerState.EQUAL, list[AnswerDifference]()
    if file.answer is None:
        state = AnswerState.NONE
    elif receipt.answer is None:
        state = AnswerState.NOT_COVERED
    elif found := changes(receipt.answer, file.answer, file.salt):
        state = AnswerState.CHANGED
    return CheckedReceipt(receipt, signer, key is not None, state, found)


def read_answer_file(raw: bytes) -> AnswerFile:
    """The receipt in a file with what is around it, of any API. ReceiptError where there is none."""
    messages = _messages(text_of(raw))
    if messages is None:
        return read_answer(raw)
    answer, receipt, salt = read_messages(messages)
    return AnswerFile(checked(exactly(receipt)), answer, salt)


def _messages(text: str) -> list[dict[str, Any]] | None:
    """The messages of an answer of gRPC, one behind the other or as a list; None: the file is something else."""
    if "receipt_json" not in text and "receiptJson" not in text:
        return None
    try:
        text, found, at = text.strip(), list[Any](), 0
        while at < len(text):
            value, at = json.JSONDecoder(object_pairs_hook=unique).raw_decode(text, at)
            found += value if isinstance(value, list) else [value]
            at += len(text[at:]) - len(text[at:].lstrip())
    except (ValueError, RecursionError):
        return None
    ends = [each["finished"] for each in found if isinstance(each, dict) and isinstance(each.get("finished"), dict)]
    carried = any(name in end for end in ends for name in ("receipt_json", "receiptJson"))
    return found if carried and all(isinstance(each, dict) for each in found) else None
