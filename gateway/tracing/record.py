"""The gateway's notes about a client's request while it runs: times and names, no spans yet.

A `RequestRecord` lives from the request's head to its last byte; each choice has a `ChoiceRecord`, and each attempt at
a worker an `AttemptAtWorker`, to which the worker's own report (a leg) is added when it comes. Spans are made of these
values later (gateway/tracing/tree.py), not on the request's way. A request that is not traced has its record all
the same: the request log and `GET /debug/requests` show it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import sub

from gateway.tenants.admission import OPEN, Admission
from gateway.tracing.span_ids import attempt_id
from mesh.errors import BatonError
from mesh.messages.jobs import Sampling, Ticket, Tier
from mesh.messages.reports import Leg
from mesh.telemetry.spans import Attribute, TraceContext, make_traceparent

CANCELLED, ERROR = "cancelled", "error"  # how a choice finishes that does not end by itself
WORKER_ENDED = "worker_ended"
WORKER_HUNG = "worker_hung"

Clock = Callable[[], float]


@dataclass(slots=True)
class AttemptAtWorker:
    """One attempt of a choice at one worker, as the gateway sees it."""

    ticket: Ticket
    tier: Tier
    worker: str  # the worker's name
    span_id: int
    sent_seconds: float
    ended_seconds: float | None = None  # when the gateway saw its end: the last token, a loss, or its own Cancel
    lost: str = ""  # why it ended before the answer; empty: it did not
    at_fault: bool = False  # its own worker lost it, not the other one of its ticket
    died: bool = False  # its worker ended while it served it
    heard_seconds: float | None = None  # when the gateway last heard of a worker that died
    first_token_seconds: float | None = None  # when its first token came
    last_token_seconds: float | None = None  # when the latest token came that the client got from it
    tokens: int = 0  # that the client got from it
    resumed_seconds: float | None = None  # when the client got the next token after its worker's death
    leg: Leg | None = None  # the worker's report
    offset_seconds: float = 0.0  # to add to the report's times


@dataclass(slots=True)
class RouteRecord:
    start_seconds: float
    end_seconds: float
    attributes: dict[str, Attribute]


@dataclass(slots=True)
class Wait:
    start_seconds: float
    end_seconds: float | None = None  # None: it waits
    waits_for: str = ""  # empty: nothing lacks


@dataclass(slots=True)
class ChoiceRecord:
    """One choice of a request at the sequencer. It has what it needs of the request's record but does not refer to it:
    the two would be garbage that only a collection finds."""

    admission: Admission
    context: TraceContext | None  # the request's root span; None: it is not traced
    expect: Callable[[AttemptAtWorker], None]
    shows: bool  # the log shows prompt and output
    index: int
    accepted_seconds: float
    prompt_tokens: int
    sampling: Sampling
    examined: bool = False  # its prompt is computed alone: no token follows
    prompt: tuple[int, ...] = ()  # kept only where the log shows content, as the next
    output: tuple[int, ...] = ()
    attempts: list[AttemptAtWorker] = field(default_factory=list)
    heard: AttemptAtWorker | None = None  # the attempt that the latest token came from, if none began since
    stopped: list[AttemptAtWorker] = field(default_factory=list)  # by a death, and no token has come since
    routes: list[RouteRecord] = field(default_factory=list)
    waits: list["Wait"] = field(default_factory=list)  # for a worker
    tokens: int = 0  # new tokens shown to the client
    cached_tokens: int = 0
    first_token_seconds: float | None = None
    first_from: Tier | None = None  # the tier whose message brought the first token
    token_seconds: list[float] = field(default_factory=list)  # when tokens came, while the choice runs
    itl_p99_seconds: float | None = None  # 99th percentile of the time between tokens, once the choice has ended
    ended_seconds: float | None = None
    finish: str = ""  # stop | length | cancelled | error; empty: it runs

    # ---- what the sequencer reports

    def waits_for_worker(self, now: float, what: str) -> None:
        """The choice waits for this. It has waited before if what it lacked was something else."""
        if self.waits and self.waits[-1].end_seconds is None:
            if self.waits[-1].waits_for == what:
                return
            self.waits[-1].end_seconds = now
        self.waits.append(Wait(now, waits_for=what))

    def routed(self, began: float, now: float, attributes: dict[str, Attribute]) -> None:
        """The choice has its workers for the next attempt."""
        if not self.waits:
            self.waits.append(Wait(self.accepted_seconds))
        if self.waits[-1].end_seconds is None:
            self.waits[-1].end_seconds = began
        self.routes.append(RouteRecord(began, now, attributes))

    def sends(self, ticket: Ticket, tier: Tier, worker: str, now: float) -> str:
        """The attempt goes to this worker; returns the trace context for its job, empty if nothing is recorded."""
        span_id = attempt_id(ticket, tier)
        attempt = AttemptAtWorker(ticket, tier, worker, span_id, now)
        self.attempts.append(attempt)
        self.heard = None
        self.admission.begins()
        if self.context is None:
            return ""
        self.expect(attempt)
        return make_traceparent(TraceContext(self.context.trace_id, span_id))

    def leaves(self, now: float, why: str = "", tier: Tier | None = None) -> None:
        """The attempts so far are over. `tier`: that of the worker that lost the choice. A prefill worker whose pages
        decode had used has lost nothing."""
        used = {
            each.ticket for each in self.attempts if each.tier is Tier.DECODE and each.first_token_seconds is not None
        }
        for attempt in self.attempts:
            if attempt.ended_seconds is None:
                attempt.ended_seconds = now
                if why and (attempt.tier is Tier.DECODE or attempt.ticket not in used):
                    attempt.lost, attempt.at_fault = why, attempt.tier is tier

    def hangs(self, now: float, tier: Tier) -> None:
        """The gateway notices that the compute of the worker of this tier stands still."""
        self.leaves(now, WORKER_HUNG, tier)

    def dies(self, now: float, tier: Tier, heard_seconds: float) -> None:
        """The gateway notices that the worker of this tier has ended; `heard_seconds`: when it last sent something."""
        for attempt in self.attempts:
            if attempt.ended_seconds is None and attempt.tier is tier:
                attempt.died, attempt.heard_seconds = True, min(heard_seconds, now)
                self.stopped.append(attempt)
        self.leaves(now, WORKER_ENDED, tier)

    def hears(self, now: float, tier: Tier, tokens: int = 0) -> None:
        """The worker of this tier has sent tokens of the current attempt, and `tokens` of them are new."""
        attempt = self.heard
        if attempt is None or attempt.tier is not tier:
            self.heard = attempt = next((each for each in reversed(self.attempts) if each.tier is tier), None)
        if attempt is not None:
            if attempt.first_token_seconds is None:
                attempt.first_token_seconds = now
            attempt.tokens += tokens
            attempt.last_token_seconds = now if tokens else attempt.last_token_seconds

    def token(self, now: float, tier: Tier) -> None:
        """The client gets another token."""
        self.admission.spends()
        self.tokens += 1
        if self.first_token_seconds is None:
            self.first_token_seconds, self.first_from = now, tier
        if self.context is not None:
            self.token_seconds.append(now)
            heard = self.heard
            if heard is None or heard.tier is not tier or heard.first_token_seconds is None:
                self.hears(now, tier, 1)
            else:
                heard.tokens += 1
                heard.last_token_seconds = now
            while self.stopped:
                self.stopped.pop().resumed_seconds = now

    def ends(self, now: float, finish: str, output: Callable[[], tuple[int, ...]] = tuple) -> None:
        self.leaves(now)
        if self.shows:
            self.output = output()
        self.ended_seconds, self.finish = now, finish
        times, self.token_seconds = self.token_seconds, []
        gaps = sorted(map(sub, times[1:], times))
        self.itl_p99_seconds = gaps[min(len(gaps) - 1, len(gaps) * 99 // 100)] if gaps else None


@dataclass(slots=True, weakref_slot=True)
class RequestRecord:
    """One request of a client, over HTTP or gRPC."""

    context: TraceContext  # its root span
    parent_id: int  # the client's own span; 0: none
    recorded: bool  # whether it is traced
    server: str  # name of the root span
    start_seconds: float
    clock: Clock
    expect: Callable[[AttemptAtWorker], None]
    on_end: Callable[["RequestRecord"], None]
    attributes: dict[str, Attribute] = field(default_factory=dict)  # attributes of the root span
    admission: Admission = OPEN  # whose request it is, and what it may use
    request_id: str = ""
    model: str = ""  # the name that the client wrote, or the only model's
    root: str = ""  # the first name of that model; empty: the request is refused
    operation: str = ""  # chat | text_completion
    asked: dict[str, Attribute] = field(default_factory=dict)  # what the client asked for, gen_ai.request.*
    choices: list[ChoiceRecord] = field(default_factory=list)
    answering_seconds: float | None = None  # when an error, or a whole answer without a choice, was decided
    end_seconds: float | None = None
    status: str = "running"  # running | ok | error | cancelled
    error: str = ""  # reason of the error
    message: str = ""  # message of the error, as the client got it
    field: str = ""  # that the error names; empty: none
    http_status: int = 200  # that the error has over HTTP
    server_error: bool = False  # the error is ours, not the client's
    complete: bool = False  # every worker has reported, or had its time
    decode: Callable[[Sequence[int], str], str] | None = (
        None  # makes text of a model's tokens; None: no content is shown
    )
    blocked: tuple[tuple[float, float], ...] = ()  # when the gateway's event loop stood still meanwhile

    def choice(
        self, now: float, prompt: tuple[int, ...], sampling: Sampling, *, examined: bool = False
    ) -> ChoiceRecord:
        choice = ChoiceRecord(
            self.admission,
            self.context if self.recorded else None,
            self.expect,
            self.decode is not None,
            len(self.choices),
            now,
            len(prompt),
            sampling,
            examined,
            prompt=prompt if self.decode is not None else (),
        )
        self.choices.append(choice)
        return choice

    def fails(self, error: BatonError) -> None:
        """The request ends with this error; its bytes are not sent yet."""
        if not self.error:
            self.error, self.message, self.http_status = error.reason, error.message, error.http_status
            self.field, self.server_error = error.field or "", error.http_status >= 500
            self.answering_seconds = self.clock()

    def ends(self, *, cancelled: bool = False) -> None:
        """The last byte is handed to the transport, or the client is gone; only the first call counts."""
        if self.end_seconds is None:
            self.end_seconds = self.clock()
            self.status = "cancelled" if cancelled else "error" if self.error else "ok"
            self.on_end(self)

    # ---- questions

    @property
    def log_fields(self) -> dict[str, str]:
        """Ids for `extra` of a log call about this request."""
        trace_id, span_id = f"{self.context.trace_id:032x}", f"{self.context.span_id:016x}"
        return {"request_id": self.request_id, "trace_id": trace_id, "span_id": span_id}

    @property
    def path(self) -> str:
        """How the answer was made: remote | local | resumed; empty before the request has a worker."""
        if any(len(choice.routes) > 1 for choice in self.choices):
            return "resumed"
        tiers = {attempt.tier for choice in self.choices for attempt in choice.attempts}
        return "" if not tiers else "remote" if Tier.PREFILL in tiers else "local"

    @property
    def prompt_tokens(self) -> int:
        return max((choice.prompt_tokens for choice in self.choices), default=0)

    @property
    def completion_tokens(self) -> int:
        return sum(choice.tokens for choice in self.choices)

    @property
    def ttft_seconds(self) -> float | None:
        firsts = [choice.first_token_seconds for choice in self.choices if choice.first_token_seconds is not None]
        return min(firsts) - self.start_seconds if firsts else None

    @property
    def seconds(self) -> float:
        """Time since the request's head arrived, up to its last byte."""
        return (self.clock() if self.end_seconds is None else self.end_seconds) - self.start_seconds


def no_report(attempt: AttemptAtWorker) -> None:
    """The worker's report of this attempt is not awaited."""


def unrecorded() -> RequestRecord:
    """A record that no front door keeps: for choices that are submitted directly."""
    return RequestRecord(
        context=TraceContext(1, 1, sampled=False),
        parent_id=0,
        recorded=False,
        server="",
        start_seconds=0.0,
        clock=lambda: 0.0,
        expect=no_report,
        on_end=lambda record: None,
    )
