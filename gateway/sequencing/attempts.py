"""The current attempt of every request, found by its ticket as workers write it.

Step 8 of a request's life. Every token and every report of a worker names the ticket of its attempt; here stands which
request that is, if the attempt is not over."""

from gateway.sequencing.requests import GatewayRequest, RequestPhase


class OpenAttempts:
    def __init__(self) -> None:
        self._requests: dict[bytes, GatewayRequest] = {}  # by packed ticket

    def begin(self, request: GatewayRequest) -> None:
        """The request has a new ticket; `end` was called for the one before."""
        assert request.ticket is not None, "an attempt has a ticket"
        self._requests[request.ticket.pack()] = request

    def end(self, request: GatewayRequest) -> None:
        if request.ticket is not None:
            self._requests.pop(request.ticket.pack(), None)

    def current(self, ticket: bytes) -> GatewayRequest | None:
        """Rule [attempt]: tokens and reports of an earlier attempt are dropped. Shown after the next attempt began, in
        another numerics class, such a token would change the answer's past."""
        request = self._requests.get(ticket)
        return request if request is not None and request.phase is RequestPhase.OPEN else None
