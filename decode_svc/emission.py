"""Tokens on their way to gateways: one message per step for all requests of a gateway.

Decode's part of step 8 of a request's life. Each request keeps the tokens that were sent: its next attempt emits them
again from its base on."""

from collections.abc import Sequence

from decode_svc.request.requests import DecodeRequest
from engine.step.plan import Piece, Sampled
from mesh.messages.jobs import End, Token
from mesh.messages.reports import Prefilled, TokenOf, Tokens
from mesh.sessions.session import Session


class Emission:
    def __init__(self) -> None:
        self._out: dict[Session, list[TokenOf]] = {}

    def show_first(self, request: DecodeRequest) -> Token | None:
        """Rule [first]: decode emits from the attempt's base on, also when prefill has sent that token. Otherwise
        decode's next token may overtake it on the other stream; the gateway drops that, and no worker repeats it."""
        first = request.produced.get(request.job.base)
        if first is not None:
            self.show(request, first)
            self.flush()
        return first

    def show(self, request: DecodeRequest, token: Token) -> None:
        request.produced[token.position] = token
        self._out.setdefault(request.gateway, []).append(TokenOf(request.ticket, token))

    def flush(self) -> None:
        for gateway, items in self._out.items():
            gateway.send(Tokens(tuple(items)))
        self._out.clear()


def extend(request: DecodeRequest, piece: Piece, verified: Sequence[Sampled]) -> list[Token]:
    """Append the tokens of a step's verified rows to the text, up to the request's end, and return them. Only slots
    with tokens of the text count as filled; later steps overwrite the slots of refused drafts."""
    if piece.position < request.next_position:
        # During the step a new attempt has appended tokens; the later rows may not continue them.
        verified = verified[:1]
    first, tokens = piece.stop - piece.sampled, list[Token]()
    request.filled = first
    for row, best in enumerate(verified):
        request.filled = first + row + 1
        position = piece.position + row
        if position >= request.next_position:
            end = request.job.sampling.end(position, best.token)
            drafted = piece.sampled - 1 if row == 0 else 0
            tops = best.top_ids, best.top_logprobs
            tokens.append(Token(position, best.token, best.logprob, *tops, end, drafted, row > 0))
            request.tokens.append(best.token)
            if end is not End.NONE:
                break
    return tokens


def prefilled_here(request: DecodeRequest, now_seconds: float) -> Prefilled:
    """The message with times and cached tokens of a local prompt, which goes out beside its first token."""
    return Prefilled(
        request.ticket,
        cached_tokens=min(request.cached, len(request.job.prompt)),
        queued_seconds=max(0.0, request.running_seconds - request.opened_seconds),
        computed_seconds=now_seconds - request.running_seconds,
    )
