"""Counts the requests that have ended, by the way they took, and keeps the last ones for those who look at the mesh.
It also counts those that wait for their first token, and estimates how long a new one would wait.

Step 9 of a request's life ends here. A record holds no prompt and no answer."""

from collections import Counter, deque
from dataclasses import dataclass

from gateway.sequencing.requests import GatewayRequest
from mesh.errors import BatonError, Cancelled

KEPT = 32  # requests that ended last
STARTS = 64  # first tokens from which the rate of starts is measured
SHORTEST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.25, 60.0


@dataclass(frozen=True, slots=True)
class EndedRequest:
    number: int  # counts ended requests, from 1
    id: int  # the request's number in tickets
    request_id: str
    trace_id: str
    path: str  # remote | local | resumed | none, as in GatewayRequest.path
    status: str  # ok | error | cancelled
    error: str  # class of the error; empty without one
    prefill: int | None  # incarnation of its last prefill worker
    decode: int | None
    attempts: int
    prompt_tokens: int
    tokens: int  # that the client got from this gateway
    seconds: float
    first_token_seconds: float | None  # None: there was none
    exposed_seconds: float | None  # from the first token until decode went on; None: decode did not


class Tally:
    def __init__(self) -> None:
        self.last: deque[EndedRequest] = deque(maxlen=KEPT)  # the newest at the end
        self.paths: Counter[str] = Counter()  # requests by path
        self.statuses: Counter[str] = Counter()
        self.refused = 0  # requests that ended before a choice of theirs was accepted; in no other counter
        self.tokens = 0  # tokens that clients got from requests that have ended
        self.waiting = 0  # choices whose turn has come, without their first token
        self._starts: deque[float] = deque(maxlen=STARTS)  # when first tokens came

    def accepted(self) -> None:
        """A choice was accepted and its turn has come."""
        self.waiting += 1

    def started(self, now: float) -> None:
        """The first token of a choice came."""
        self.waiting -= 1
        self._starts.append(now)

    def wait_seconds(self, now: float) -> float:
        """How long a choice that came now would wait for its first token: the queue divided by the rate of starts."""
        if len(self._starts) < 2 or now <= self._starts[0]:
            return 1.0
        rate = len(self._starts) / (now - self._starts[0])
        return min(max(self.waiting / rate, SHORTEST_WAIT_SECONDS), LONGEST_WAIT_SECONDS)

    def ended(self, request: GatewayRequest, error: BatonError | None) -> None:
        assert request.ended_seconds is not None, "only an ended request is counted"
        first = request.first_token_seconds
        handed = request.handed_seconds
        attempts = attempts_of(request)
        status = "ok" if error is None else "cancelled" if isinstance(error, Cancelled) else "error"
        self.waiting -= first is None and request.turn_seconds is not None
        self.statuses[status] += 1
        self.paths[request.path] += 1
        self.tokens += len(request.shown)
        self.last.append(
            EndedRequest(
                number=sum(self.statuses.values()),
                id=request.id,
                request_id=request.choice.request_id,
                trace_id=trace_id_of(request),
                path=request.path,
                status=status,
                error=type(error).__name__ if error else "",
                prefill=request.prefill,
                decode=request.decode,
                attempts=attempts,
                prompt_tokens=len(request.choice.prompt),
                tokens=len(request.shown),
                seconds=request.ended_seconds - request.accepted_seconds,
                first_token_seconds=None if first is None else first - request.accepted_seconds,
                exposed_seconds=None if first is None or handed is None else max(0.0, handed - first),
            )
        )


def trace_id_of(request: GatewayRequest) -> str:
    return f"{request.choice.trace.context.trace_id:032x}"


def attempts_of(request: GatewayRequest) -> int:
    return request.ticket.attempt if request.ticket else 0
