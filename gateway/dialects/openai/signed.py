"""Puts the receipt of a whole answer into it: step 8 of a request's life over HTTP."""

from functools import partial
from typing import Any

from gateway.dialects.common.pieces import encode_pieces
from gateway.receipts.receipts import OpenReceipt


async def signed(receipt: OpenReceipt | None, answer: dict[str, Any]) -> dict[str, Any]:
    """The whole answer, with its receipt where the client wants one."""
    return answer if receipt is None else answer | await receipt.of_whole(partial(encode_pieces, answer))
