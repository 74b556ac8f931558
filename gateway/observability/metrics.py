"""Counts what the gateway knows about requests: the observer of its sequencer, streams and front doors.

Everything is cumulative since the gateway's start. `gateway/observability/export.py` turns it into the metrics of
`GET /metrics`, together with what workers push. A request with n choices counts n times, except in `request_params_n`
and `request_max_num_generation_tokens`. An examination counts as a request without tokens."""

from collections import Counter
from dataclasses import dataclass
from itertools import product

from gateway.attaching.handing_over import LEFT_DRAINED
from gateway.core.interface import ChoiceRequest
from gateway.observability.histograms import HistogramFamily
from gateway.routing.router import RouteDecision
from gateway.sequencing.deaths import LEFT_STALLED
from gateway.sequencing.requests import READER_BEHIND, GatewayRequest
from gateway.workers.attached import AttachedWorker
from mesh.errors import BatonError, Cancelled
from mesh.messages.jobs import End, Reason, Tier, Token
from mesh.messages.reports import Distribution, Prefilled
from mesh.telemetry.buckets import (
    CHOICES,
    DELAY,
    FIRST_TOKEN,
    ITERATION_TOKENS,
    ITL,
    LATENCY,
    MICRO,
    OTEL_DURATION,
    PER_TOKEN,
    REQUEST_TOKENS,
    STAGE,
)
from mesh.telemetry.spans import TraceContext

# Each counter shows all of its series from the start, so that the first event is a rise and not a new series.
PATHS, STATUSES = ("remote", "local", "resumed", "none"), ("ok", "error", "cancelled")
MOST_ADAPTERS, OTHER_ADAPTERS = 100, "_others"
TIERS = tuple(tier.value for tier in Tier)
RESUMES = (
    *(reason.value for reason in Reason),
    *(
        "full_ever",
        "full_now",
        "decode_gone",
        "prefill_gone",
        "decode_hung",
        "prefill_hung",
        LEFT_STALLED,
        READER_BEHIND,
        LEFT_DRAINED,
    ),
)


class GatewayMetrics:
    """The product's RequestObserver."""

    def __init__(self) -> None:
        self.requests = Counter[tuple[str, str]](dict.fromkeys(product(PATHS, STATUSES), 0))
        self.finished = Counter[str]()  # by vLLM's finish reasons
        self.attempts = 0
        self.resumes = Counter[str](dict.fromkeys(RESUMES, 0))
        self.adapters = Counter[str]()  # by name
        self.errors = Counter[str](dict.fromkeys((error.reason for error in BatonError.__subclasses__()), 0))
        self.decisions = Counter[str](dict.fromkeys((each.value for each in RouteDecision), 0))
        self.expired = Counter[str](dict.fromkeys(TIERS, 0))
        self.prompt_tokens = self.generated = 0
        self.draft_steps = self.drafts = self.accepted_drafts = 0
        self.accepted_at = Counter[int]({0: 0})  # accepted drafts by their place in a step
        self.prefix_queries, self.prefix_hits = (Counter[str](dict.fromkeys(TIERS, 0)) for _ in range(2))  # tokens
        self.first_tokens = HistogramFamily(("path", "operation"), FIRST_TOKEN)
        self.gaps = HistogramFamily((), ITL, PER_TOKEN)
        self.durations = HistogramFamily(("path", "status", "operation", "error"), LATENCY, OTEL_DURATION)
        self.per_token = HistogramFamily(("operation",), PER_TOKEN)
        self.handoffs = HistogramFamily((), STAGE)
        self.prompt_queues = HistogramFamily(("tier",), STAGE)
        self.prompt_computes = HistogramFamily(("tier",), STAGE)
        self.queues, self.prefills = HistogramFamily((), LATENCY), HistogramFamily((), LATENCY)
        self.decodes, self.inferences = HistogramFamily((), LATENCY), HistogramFamily((), LATENCY)
        self.prompt_sizes = HistogramFamily((), REQUEST_TOKENS)
        self.answer_sizes = HistogramFamily((), REQUEST_TOKENS)
        self.longest_choices = HistogramFamily((), REQUEST_TOKENS)
        self.choice_counts = HistogramFamily((), CHOICES)
        self.token_limits = HistogramFamily((), REQUEST_TOKENS)
        self.route_seconds = HistogramFamily((), MICRO)
        self.loop_delay = HistogramFamily((), DELAY)
        self.step_tokens = HistogramFamily((), ITERATION_TOKENS)
        self._gap = self.gaps.of()
        self._route = self.route_seconds.of()
        self._loop = self.loop_delay.of()
        self._steps: dict[int, Distribution] = {}  # by incarnation: the steps that `step_tokens` includes
        self._groups: dict[str, _Group] = {}  # by request id: the requests of several choices that have not ended

    # ---- a request's life, in order

    def accepted(self, request: GatewayRequest) -> None:
        choice = request.choice
        if choice.examination is not None:
            return  # it is no choice of an answer
        if choice.request_id not in self._groups:
            self.choice_counts.of().observe(choice.choices, request.trace.context, request.accepted_seconds)
        if choice.choices > 1:
            self._groups.setdefault(choice.request_id, _Group()).running += 1

    def routed(self, decision: RouteDecision, seconds: float) -> None:
        self.decisions[decision.value] += 1
        self._route.observe(seconds)

    def attempted(self) -> None:
        self.attempts += 1

    def resumed(self, reason: str, model: str = "") -> None:
        self.resumes[reason] += 1

    def prefilled(self, request: GatewayRequest, prefilled: Prefilled) -> None:
        tier = Tier.DECODE.value if request.prefill is None else Tier.PREFILL.value
        trace, now = request.trace.context, request.accepted_seconds + prefilled.queued_seconds
        self.prompt_queues.of(tier).observe(prefilled.queued_seconds, trace, now)
        self.prompt_computes.of(tier).observe(prefilled.computed_seconds, trace, now)
        self.prefix_queries[tier] += len(request.choice.prompt)
        self.prefix_hits[tier] += prefilled.cached_tokens

    def examined(self, request: GatewayRequest) -> None:
        if not request.choice.sampling.max_tokens:  # else the tokens behind it count the prompt
            self.prompt_tokens += len(request.choice.prompt)

    def first_token(self, request: GatewayRequest, now: float) -> None:
        choice, seconds = request.choice, now - request.accepted_seconds
        self.first_tokens.of(request.path, operation(choice)).observe(seconds, request.trace.context, now)
        if choice.sampling.choice == 0:  # the choices of a request share its prompt
            self.prompt_tokens += len(choice.prompt)

    def next_tokens(self, request: GatewayRequest, gap_seconds: float, now: float, count: int = 1) -> None:
        self._gap.observe(gap_seconds, request.trace.context, now, count)

    def handed(self, request: GatewayRequest, now: float) -> None:
        if request.prefill is not None and request.first_token_seconds is not None:
            seconds = now - request.first_token_seconds
            self.handoffs.of().observe(seconds, request.trace.context, now)

    def taken(self, token: Token, in_a_row: int, model: str = "") -> None:
        self.generated += 1
        if token.drafted:
            self.draft_steps += 1
            self.drafts += token.drafted
        if in_a_row:
            self.accepted_drafts += 1
            self.accepted_at[in_a_row - 1] += 1

    def taken_plain(self, count: int, model: str = "") -> None:
        self.generated += count

    def ended(self, request: GatewayRequest, error: BatonError | None) -> None:
        cancelled = isinstance(error, Cancelled) and not request.complete
        status = "cancelled" if cancelled else "ok" if error is None or request.complete else "error"
        self.requests[request.path, status] += 1
        self.finished[finish_reason(request, status)] += 1
        if (adapter := request.choice.adapter) is not None:
            known = adapter.name in self.adapters or len(self.adapters) < MOST_ADAPTERS
            self.adapters[adapter.name if known else OTHER_ADAPTERS] += 1
        assert request.ended_seconds is not None, "only an ended request is reported"
        trace, now = request.trace.context, request.ended_seconds
        what = "" if status == "ok" or error is None else error.reason
        duration = self.durations.of(request.path, status, operation(request.choice), what)
        duration.observe(now - request.accepted_seconds, trace, now)
        if status == "ok":
            self._ended_well(request, trace, now)
        if request.choice.examination is None:
            self._end_in_group(request, len(request.shown) if status == "ok" else 0, trace, now)

    def _ended_well(self, request: GatewayRequest, trace: TraceContext | None, now: float) -> None:
        choice = request.choice
        shown = len(request.shown)
        began = request.accepted_seconds
        first = now if request.first_token_seconds is None else request.first_token_seconds
        computed = request.prefilled.computed_seconds if request.prefilled else 0.0
        self.queues.of().observe(max(0.0, first - began - computed), trace, now)
        self.prefills.of().observe(computed, trace, now)
        self.decodes.of().observe(now - first, trace, now)
        self.inferences.of().observe(now - first + computed, trace, now)
        if shown > 1:
            each = (request.shown_seconds - first) / (shown - 1)
            self.per_token.of(operation(choice)).observe(each, trace, now)
        self.prompt_sizes.of().observe(len(choice.prompt), trace, now)
        if choice.examination is not None:
            return
        self.answer_sizes.of().observe(shown, trace, now)
        self.token_limits.of().observe(choice.sampling.max_tokens)

    def _end_in_group(self, request: GatewayRequest, tokens: int, trace: TraceContext | None, now: float) -> None:
        """Observe the longest choice of a request when its last choice has ended."""
        group = self._groups.get(request.choice.request_id, _Group(1))
        group.running, group.longest = group.running - 1, max(group.longest, tokens)
        if not group.running:
            self._groups.pop(request.choice.request_id, None)
            if group.longest:
                self.longest_choices.of().observe(group.longest, trace, now)

    # ---- errors, workers

    def refused(self, error: BatonError) -> None:
        self.errors[error.reason] += 1

    def measured(self, worker: AttachedWorker) -> None:
        """Add the steps since the worker's last measures; what it did before it attached here does not count."""
        now, sums = worker.distributions.get("step_tokens"), self.step_tokens.of()
        before = self._steps.get(worker.incarnation)
        if now is None or len(now.counts) != len(sums.counts):
            return
        self._steps[worker.incarnation] = now
        if before is not None:
            sums.sum += now.sum - before.sum
            for bucket, (new, old) in enumerate(zip(now.counts, before.counts, strict=True)):
                sums.counts[bucket] += new - old

    def lease_expired(self, tier: Tier) -> None:
        self.expired[tier.value] += 1

    def gone(self, worker: AttachedWorker) -> None:
        self._steps.pop(worker.incarnation, None)


@dataclass(slots=True)
class _Group:
    """The choices of one request."""

    running: int = 0
    longest: int = 0  # tokens of the longest choice that has ended well


def operation(choice: ChoiceRequest) -> str:
    """The name of the operation by OpenTelemetry's conventions."""
    return choice.trace.operation or "text_completion"


def finish_reason(request: GatewayRequest, status: str) -> str:
    if status != "ok":
        return {"cancelled": "abort", "error": "error"}[status]
    return "length" if not request.complete and request.finish == End.LENGTH.value else "stop"
