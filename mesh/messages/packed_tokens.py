"""Tokens as they travel: one list for each of their fields. Most messages of a busy worker are such columns alone.

To make two objects of each token takes longer than to send it on. So the gateway reads `rows`
(gateway/sequencing/relay.py), which are the columns themselves; `items` makes objects of them."""

from collections.abc import Iterator, Sequence
from itertools import repeat

from mesh.messages.codec_fields import unpack_ticket
from mesh.messages.jobs import End, Token
from mesh.messages.reports import TokenOf, TokenRow, Tokens


class PackedTokens(Tokens):
    """Tokens without likeliest ones and without drafts."""

    __slots__ = ("ends", "logprobs", "positions", "tickets", "tokens")
    tickets: Sequence[bytes]  # packed, see Ticket.pack
    positions: Sequence[int]
    tokens: Sequence[int]
    logprobs: Sequence[float]
    ends: Sequence[End]

    def __init__(
        self,
        tickets: Sequence[bytes],
        positions: Sequence[int],
        tokens: Sequence[int],
        logprobs: Sequence[float],
        ends: Sequence[End],
    ) -> None:
        columns = (tickets, positions, tokens, logprobs, ends)
        for name, column in zip(("tickets", "positions", "tokens", "logprobs", "ends"), columns, strict=True):
            object.__setattr__(self, name, column)

    def rows(self) -> Iterator[TokenRow]:
        return zip(self.tickets, self.positions, self.tokens, self.logprobs, self.ends, repeat(None))

    @property
    def items(self) -> tuple[TokenOf, ...]:
        columns = zip(self.tickets, self.positions, self.tokens, self.logprobs, self.ends, strict=True)
        return tuple(
            TokenOf(unpack_ticket(ticket), Token(position, token, logprob, end=end))
            for ticket, position, token, logprob, end in columns
        )

    def pieces(self, most: int) -> Iterator["PackedTokens"]:
        """The same in pieces of about `most` tokens; those of one request stay together."""
        tickets, first = self.tickets, 0
        while first < len(tickets):
            end = min(first + most, len(tickets))
            while end < len(tickets) and tickets[end] == tickets[end - 1]:
                end += 1
            part = slice(first, end)
            yield PackedTokens(
                tickets[part], self.positions[part], self.tokens[part], self.logprobs[part], self.ends[part]
            )
            first = end

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokens) and self.items == other.items

    def __hash__(self) -> int:
        return hash(self.items)
