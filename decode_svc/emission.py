"""Tokens on their way to gateways: one message per step for all requests of a gateway.

Step 8 of a request's life as decode begins it. What was shown is kept with its request: an attempt that takes over
emits again from its base on."""

from decode_svc.requests import Request
from mesh.messages import Token, TokenOf, Tokens
from mesh.session import Session


class Emission:
    def __init__(self) -> None:
        self._out: dict[Session, list[TokenOf]] = {}

    def show(self, request: Request, token: Token) -> None:
        request.produced[token.position] = token
        self._out.setdefault(request.gateway, []).append(TokenOf(request.ticket, token))

    def flush(self) -> None:
        for gateway, items in self._out.items():
            gateway.send(Tokens(tuple(items)))
        self._out.clear()
