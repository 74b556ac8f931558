"""The calls by which the gateway tells its metrics about a request: one at each moment that counts.

The sequencer, the streams and the front doors call a `RequestObserver`; `gateway/observability/metrics.py` is the one
that counts. Times are those of the event loop's clock. An observer never raises and never waits."""

from typing import Protocol

from gateway.routing.router import RouteDecision
from gateway.sequencing.requests import GatewayRequest
from gateway.workers.attached import AttachedWorker
from mesh.errors import BatonError
from mesh.messages.jobs import Tier, Token
from mesh.messages.reports import Prefilled


class RequestObserver(Protocol):
    def accepted(self, request: GatewayRequest) -> None:
        """A front door has submitted a choice."""

    def routed(self, decision: RouteDecision, seconds: float) -> None:
        """The router chose, and took `seconds`."""

    def attempted(self) -> None:
        """An attempt begins."""

    def resumed(self, reason: str, model: str = "") -> None:
        """An attempt has failed for this reason; the next one begins. `model`: the root of the request's model."""

    def prefilled(self, request: GatewayRequest, prefilled: Prefilled) -> None:
        """The request's prompt is computed."""

    def examined(self, request: GatewayRequest) -> None:
        """Every finding of an examination is here; it ends next."""

    def first_token(self, request: GatewayRequest, now: float) -> None: ...

    def next_tokens(self, request: GatewayRequest, gap_seconds: float, now: float, count: int = 1) -> None:
        """A message with further tokens came, `gap_seconds` after the one before, to `count` requests like this one."""

    def handed(self, request: GatewayRequest, now: float) -> None:
        """Decode has sent its first tokens of this request: the first hand-off, not that of a resumption."""

    def taken(self, token: Token, in_a_row: int, model: str = "") -> None:
        """A front door took a token for its client. `in_a_row` is 1 for the first accepted draft of a step, 2 for the
        second, and so on; 0 for any other token."""

    def taken_plain(self, count: int, model: str = "") -> None:
        """Tokens that were no drafts have left for their clients at once, `count` of them."""

    def ended(self, request: GatewayRequest, error: BatonError | None) -> None: ...

    def refused(self, error: BatonError) -> None:
        """A client gets this error."""

    def measured(self, worker: AttachedWorker) -> None:
        """New measures of a worker have come."""

    def lease_expired(self, tier: Tier) -> None:
        """The session with a worker of this tier ended because the worker was silent."""

    def gone(self, worker: AttachedWorker) -> None:
        """The session with a worker has ended."""


class Unobserved:
    """Counts nothing."""

    def accepted(self, request: GatewayRequest) -> None:
        pass

    def routed(self, decision: RouteDecision, seconds: float) -> None:
        pass

    def attempted(self) -> None:
        pass

    def resumed(self, reason: str, model: str = "") -> None:
        pass

    def prefilled(self, request: GatewayRequest, prefilled: Prefilled) -> None:
        pass

    def examined(self, request: GatewayRequest) -> None:
        pass

    def first_token(self, request: GatewayRequest, now: float) -> None:
        pass

    def next_tokens(self, request: GatewayRequest, gap_seconds: float, now: float, count: int = 1) -> None:
        pass

    def handed(self, request: GatewayRequest, now: float) -> None:
        pass

    def taken(self, token: Token, in_a_row: int, model: str = "") -> None:
        pass

    def taken_plain(self, count: int, model: str = "") -> None:
        pass

    def ended(self, request: GatewayRequest, error: BatonError | None) -> None:
        pass

    def refused(self, error: BatonError) -> None:
        pass

    def measured(self, worker: AttachedWorker) -> None:
        pass

    def lease_expired(self, tier: Tier) -> None:
        pass

    def gone(self, worker: AttachedWorker) -> None:
        pass


UNOBSERVED = Unobserved()
