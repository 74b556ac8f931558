"""The members of a receipt with their types, for readers: whatever a file says, only this shape gets through."""

from typing import Annotated, Any

import msgspec

from gateway.receipts.answers.fields import Covered
from gateway.receipts.canonical import ReceiptError

Count = Annotated[int, msgspec.Meta(ge=0)]


class ReceiptNumerics(msgspec.Struct, frozen=True):
    name: str = msgspec.field(name="class")
    fingerprint: str


class ReceiptChoice(msgspec.Struct, frozen=True):
    index: Count
    tokens: Count
    given: Count  # tokens that the client brought along, the first ones
    hash: str
    marks_every: Annotated[int, msgspec.Meta(ge=1)]
    marks: str
    finish_reason: str
    spans: list[tuple[Count, Count]]  # first token, number of the class in `numerics`


class ReceiptPrompt(msgspec.Struct, frozen=True):
    tokens: Count
    hash: str
    seed: Annotated[str, msgspec.Meta(pattern="^[0-9]{1,20}$")]
    choices: list[ReceiptChoice]


class Receipt(msgspec.Struct, frozen=True):
    id: str
    request_id: str
    created: int
    baton: str
    model: str
    model_hash: str
    numerics: list[ReceiptNumerics]
    parameters: dict[str, Any] | None
    prompts: list[ReceiptPrompt]
    key: str = ""
    answer: Covered | None = None  # none in receipts of older gateways


def shaped(receipt: dict[str, Any]) -> Receipt:
    """ReceiptError where a member is missing or of another type."""
    try:
        return msgspec.convert(receipt, Receipt, strict=True)
    except msgspec.ValidationError as error:
        raise ReceiptError(f"the receipt is not complete: {error}") from None
