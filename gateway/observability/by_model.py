"""Counts requests twice where a gateway serves several models: once for all, once for the request's own model.

The metrics of the mesh (`baton_*`) show the first, those that carry a model's name (`vllm:*`, `gen_ai_*`) the second.
With one model both are the same counts, and the gateway reports to them directly."""

from collections.abc import Iterable, Mapping

from gateway.observability.metrics import GatewayMetrics
from gateway.routing.router import RouteDecision
from gateway.sequencing.observer import RequestObserver
from gateway.sequencing.requests import GatewayRequest
from gateway.workers.attached import AttachedWorker
from mesh.errors import BatonError
from mesh.messages.jobs import Tier, Token
from mesh.messages.reports import Prefilled


class MetricsByModel:
    """A RequestObserver too."""

    def __init__(self, contexts: Mapping[str, int]) -> None:
        """`contexts`: the context length of each model, by its root."""
        self.all, self.contexts = GatewayMetrics(), dict(contexts)
        several = len(self.contexts) > 1
        self.of = {root: GatewayMetrics() if several else self.all for root in self.contexts}
        self.observer: RequestObserver = self if several else self.all

    def _both(self, model: str) -> Iterable[GatewayMetrics]:
        return (self.all, self.of[model])

    def accepted(self, request: GatewayRequest) -> None:
        for each in self._both(request.choice.model):
            each.accepted(request)

    def routed(self, decision: RouteDecision, seconds: float) -> None:
        self.all.routed(decision, seconds)

    def attempted(self) -> None:
        self.all.attempted()

    def resumed(self, reason: str, model: str = "") -> None:
        for each in self._both(model):
            each.resumed(reason)

    def prefilled(self, request: GatewayRequest, prefilled: Prefilled) -> None:
        for each in self._both(request.choice.model):
            each.prefilled(request, prefilled)

    def examined(self, request: GatewayRequest) -> None:
        for each in self._both(request.choice.model):
            each.examined(request)

    def first_token(self, request: GatewayRequest, now: float) -> None:
        for each in self._both(request.choice.model):
            each.first_token(request, now)

    def next_tokens(self, request: GatewayRequest, gap_seconds: float, now: float, count: int = 1) -> None:
        for each in self._both(request.choice.model):
            each.next_tokens(request, gap_seconds, now, count)

    def handed(self, request: GatewayRequest, now: float) -> None:
        for each in self._both(request.choice.model):
            each.handed(request, now)

    def taken(self, token: Token, in_a_row: int, model: str = "") -> None:
        for each in self._both(model):
            each.taken(token, in_a_row)

    def taken_plain(self, count: int, model: str = "") -> None:
        for each in self._both(model):
            each.taken_plain(count)

    def ended(self, request: GatewayRequest, error: BatonError | None) -> None:
        for each in self._both(request.choice.model):
            each.ended(request, error)

    def refused(self, error: BatonError) -> None:
        self.all.refused(error)

    def measured(self, worker: AttachedWorker) -> None:
        for each in self._both(worker.model):
            each.measured(worker)

    def lease_expired(self, tier: Tier) -> None:
        self.all.lease_expired(tier)

    def gone(self, worker: AttachedWorker) -> None:
        for each in self._both(worker.model):
            each.gone(worker)
