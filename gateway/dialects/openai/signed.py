"""Puts the receipt of a whole answer into it: step 8 of a request's life over HTTP."""

from collections.abc import Mapping
from functools import partial
from typing import TypeVar

from msgspec import Struct

from gateway.dialects.common.pieces import encode_pieces
from gateway.receipts.receipts import OpenReceipt

Answer = TypeVar("Answer", bound=Struct)


async def signed(receipt: OpenReceipt | None, answer: Answer) -> Answer:
    """The whole answer, with its receipt where the client wants one."""
    if receipt is not None:
        put_in(answer, await receipt.of_whole(partial(encode_pieces, answer)))
    return answer


def put_in(answer: Struct, members: Mapping[str, object]) -> None:
    for name, value in members.items():
        setattr(answer, name, value)
