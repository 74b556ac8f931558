"""Signed receipts and the key that signs them as msgspec types.

They exist for the API's description alone, like those of gateway/dialects/described/answers.py. Readers of receipts
check the members that gateway/receipts/shape.py lists."""

from typing import Any, Literal

from msgspec import Struct

from gateway.receipts.shape import ReceiptNumerics, ReceiptPrompt


class AnswerDigests(Struct, kw_only=True):
    """A digest for each field of the answer, which needs the answer's `receipt_salt`."""

    salt: str  # SHA-256 of the salt
    fields: list[tuple[str, str]]  # path in the answer, digest
    stream: list[tuple[str, str]] | None  # digests of what only the events of a stream say; null: a whole answer


class SignedReceipt(Struct, kw_only=True):
    """A receipt says by hashes which tokens were computed; docs/receipts.md explains each member."""

    format: Literal["baton-receipt/1"]
    id: str
    request_id: str
    created: int
    baton: str  # version of the gateway
    model: str
    model_hash: str
    numerics: list[ReceiptNumerics]
    parameters: dict[str, Any] | None
    prompts: list[ReceiptPrompt]
    answer: AnswerDigests
    key: str
    signature: str


class ReceiptKey(Struct):
    algorithm: Literal["ed25519"]
    key: str  # 64 hexadecimal digits
    pem: str
