"""A message with many tokens arrives in pieces, between which its reader may do other work."""

from collections.abc import Iterator

from mesh.messages.message import Message
from mesh.messages.packed_tokens import PackedTokens
from mesh.messages.reports import Tokens

PIECE_TOKENS = 32  # tokens in one piece, about


def pieces(message: Message) -> Iterator[Message]:
    """The message, or its pieces; the tokens of one request stay together."""
    if isinstance(message, PackedTokens):
        yield from message.pieces(PIECE_TOKENS)
        return
    if not isinstance(message, Tokens) or len(message.items) <= PIECE_TOKENS:
        yield message
        return
    items, first = message.items, 0
    while first < len(items):
        end = min(first + PIECE_TOKENS, len(items))
        while end < len(items) and items[end].ticket == items[end - 1].ticket:
            end += 1
        yield Tokens(items[first:end])
        first = end
