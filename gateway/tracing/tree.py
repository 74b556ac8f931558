"""Makes a finished request's span tree from what the gateway noted and what the workers reported. Pure functions.

Leaves tile the request: at the gateway each phase begins where the one before ended, a worker's leg has no gaps, and
the ways between them are spans of their own, `dispatch` and `deliver`. Whatever a clock's error or a worker's late end
would put outside its parent is cut off. Ids follow from the trace and the tickets, so a tree made twice is equal, and
`kv.receive` can link to `kv.send`."""

from collections.abc import Iterator, Sequence

import msgspec

from gateway.tracing import blocked
from gateway.tracing.attributes import chat_attributes, root_attributes
from gateway.tracing.record import AttemptAtWorker, ChoiceRecord, RequestRecord, Wait
from gateway.tracing.slo_limits import Limits
from gateway.tracing.span_ids import child_id
from gateway.tracing.unreported import seen_leg, silent_since
from mesh.messages.jobs import Tier
from mesh.messages.reports import Leg, Phase
from mesh.telemetry import semconv
from mesh.telemetry.spans import Attribute, SpanEvent, SpanKind, SpanRecord, TraceContext, parse_traceparent


def assemble(record: RequestRecord, service: str, limits: Limits) -> list[SpanRecord]:
    """All spans of a request, parents before their children. One that still runs is shown up to now."""
    return _Tree(record, service, limits).spans


def step_spans(
    worker: str, steps: Sequence[Phase], trace_ids: Sequence[int], offset_seconds: float
) -> list[SpanRecord]:
    """Sampled steps of a worker: each is a trace of its own with links to the requests in the step."""
    return [
        SpanRecord(
            worker,
            step.name,
            trace_id,
            child_id(trace_id, step.name),
            0,
            step.start_seconds + offset_seconds,
            step.end_seconds + offset_seconds,
            _attributes(step.attributes),
            links=tuple(context for text in step.links if (context := parse_traceparent(text)) is not None),
        )
        for step, trace_id in zip(steps, trace_ids, strict=True)
    ]


class _Tree:
    def __init__(self, record: RequestRecord, service: str, limits: Limits) -> None:
        self._record, self._service = record, service
        self._start = record.start_seconds
        self._end = record.clock() if record.end_seconds is None else record.end_seconds
        self._trace_id, root_id = record.context.trace_id, record.context.span_id
        error = record.error if record.server_error else ""
        root = SpanRecord(
            service,
            record.server,
            self._trace_id,
            root_id,
            record.parent_id,
            self._start,
            self._end,
            root_attributes(record, limits),
            kind=SpanKind.SERVER,
            error=error,
        )
        self.spans = [root]
        self._used: dict[str, int] = {}
        name = f"{record.operation or semconv.CHAT} {record.model}".strip()
        self._chat = self._own(name, root_id, self._start, self._end, chat_attributes(record))
        accepted = [choice.accepted_seconds for choice in record.choices]
        begun = min(accepted, default=self._end if record.answering_seconds is None else record.answering_seconds)
        self._own(semconv.PREPROCESS, self._chat, self._start, begun)
        for choice in record.choices:
            self._choice(choice)
        decided = self._decided(begun)
        if record.end_seconds is not None:
            self._own(semconv.POSTPROCESS, self._chat, decided, self._end)
        own = [span for span in self.spans if span.service == service]
        self.spans += blocked.spans(own, service, record.blocked, self._id)

    def _decided(self, begun: float) -> float:
        """When the last token had come, or the error was decided."""
        ends = [self._end if choice.ended_seconds is None else choice.ended_seconds for choice in self._record.choices]
        return max(ends, default=begun)

    # ---- the gateway's own spans

    def _choice(self, choice: ChoiceRecord) -> None:
        end = self._end if choice.ended_seconds is None else min(choice.ended_seconds, self._end)
        which: dict[str, Attribute] = {semconv.CHOICE: choice.index} if len(self._record.choices) > 1 else {}
        for wait in choice.waits or [Wait(choice.accepted_seconds)]:
            until = end if wait.end_seconds is None else wait.end_seconds
            lacks: dict[str, Attribute] = {semconv.WAITS_FOR: wait.waits_for} if wait.waits_for else {}
            self._own(semconv.ADMISSION, self._chat, wait.start_seconds, until, {**which, **lacks})
        for route in choice.routes:
            self._own(semconv.ROUTE, self._chat, route.start_seconds, route.end_seconds, {**which, **route.attributes})
        for attempt in choice.attempts:
            self._attempt(choice, attempt, end, which)

    def _own(
        self, name: str, parent: int, start: float, end: float, attributes: dict[str, Attribute] | None = None
    ) -> int:
        """A span of the gateway; returns its id."""
        start, end = self._within(start, end, self._start, self._end)
        ids = self._trace_id, self._id(name), parent
        self.spans.append(SpanRecord(self._service, name, *ids, start, end, attributes or {}))
        return ids[1]

    def _id(self, name: str) -> int:
        count = self._used[name] = self._used.get(name, 0) + 1
        return child_id(self._record.context.span_id, name, count)

    @staticmethod
    def _within(start: float, end: float, low: float, high: float) -> tuple[float, float]:
        start = low if start < low else high if start > high else start
        return start, start if end < start else high if end > high else end

    # ---- an attempt at a worker: the gateway's span, and the worker's spans below it

    def _attempt(
        self, choice: ChoiceRecord, attempt: AttemptAtWorker, choice_end: float, which: dict[str, Attribute]
    ) -> None:
        closed = choice_end if attempt.ended_seconds is None else min(attempt.ended_seconds, choice_end)
        leg, offset = attempt.leg, attempt.offset_seconds
        if leg is None and (attempt.died or self._record.complete):
            leg, offset = seen_leg(attempt, choice.attempts, closed), 0.0
        end = _end_of(leg, offset, closed)
        attributes: dict[str, Attribute] = {
            **which,
            semconv.WORKER: attempt.worker,
            semconv.ATTEMPT: attempt.ticket.attempt,
        }
        if attempt.lost:
            attributes[semconv.LOST] = attempt.lost
        if attempt.died:
            attributes[semconv.DIED] = True
        if attempt.resumed_seconds is not None:
            attributes[semconv.RESUME] = attempt.resumed_seconds - silent_since(attempt)
        error = f"{attempt.worker} died while it served this request" if attempt.died else ""
        start, end = self._within(attempt.sent_seconds, end, self._start, self._end)
        name = semconv.PREFILL if attempt.tier is Tier.PREFILL else semconv.DECODE
        ids = self._trace_id, attempt.span_id, self._chat
        self.spans.append(
            SpanRecord(self._service, name, *ids, start, end, attributes, kind=SpanKind.CLIENT, error=error)
        )
        if leg is None:
            return
        if leg is attempt.leg:
            self._own(semconv.DISPATCH, attempt.span_id, start, min(leg.start_seconds + offset, end))
        self._leg(attempt, leg, offset, start, end)
        if attempt.leg is not None:
            self._deliver(choice, attempt, end, closed)

    def _leg(self, attempt: AttemptAtWorker, leg: Leg, offset: float, start: float, end: float) -> None:
        mine, dispatch = list[SpanRecord](), self.spans[-1]
        intervals = list[tuple[float, float]]()
        used: dict[str, int] = {}
        for phase in leg.phases:
            begins, ends = phase.start_seconds + offset, phase.end_seconds + offset
            if phase.name == semconv.LOOP_BLOCKED:
                intervals.append((begins, ends))
                continue
            if begins > end and mine:
                continue  # the worker went on until it got the Cancel: that is no part of the request
            used[phase.name] = used.get(phase.name, 0) + 1
            found = _attributes(phase.attributes)
            mine.append(
                SpanRecord(
                    self._service if phase.name == semconv.SILENCE else attempt.worker,
                    phase.name,
                    self._trace_id,
                    child_id(attempt.span_id, phase.name, used[phase.name]),
                    attempt.span_id,
                    *self._within(begins, ends, start, end),
                    found,
                    tuple(_events(phase, offset, start, end)) if phase.events else (),
                    self._links(attempt) if phase.name == semconv.KV_RECEIVE else (),
                    error=f"{attempt.worker} died" if semconv.DIED in found else "",
                )
            )

        def new_id(name: str) -> int:
            used[name] = used.get(name, 0) + 1
            return child_id(attempt.span_id, name, used[name])

        self.spans += mine
        self.spans += blocked.spans([dispatch, *mine], attempt.worker, intervals, new_id)

    def _links(self, attempt: AttemptAtWorker) -> tuple[TraceContext, ...]:
        """Links from each kv.receive to the kv.send of the same ticket."""
        senders = [
            other
            for choice in self._record.choices
            for other in choice.attempts
            if other.ticket == attempt.ticket and other.tier is Tier.PREFILL and other.leg is not None
        ]
        return tuple(
            TraceContext(self._trace_id, child_id(sender.span_id, semconv.KV_SEND))
            for sender in senders
            if sender.leg is not None and any(p.name == semconv.KV_SEND for p in sender.leg.phases)
        )

    def _deliver(self, choice: ChoiceRecord, attempt: AttemptAtWorker, end: float, closed: float) -> None:
        """The ways of the first token, and of the last token or the loss, from the worker to the gateway."""
        first = choice.first_token_seconds
        if first is not None and choice.first_from is attempt.tier and attempt.leg is not None:
            left = _first_token_left(attempt)
            if left is not None and left <= first <= closed and attempt is self._first_attempt(choice, attempt.tier):
                self._own(semconv.DELIVER, self._chat, left, first)
        ends_here = attempt.tier is Tier.DECODE or attempt.at_fault or choice.tokens == 1 or choice.examined
        if ends_here and not attempt.died and end < closed and first != closed:
            self._own(semconv.DELIVER, self._chat, end, closed)

    @staticmethod
    def _first_attempt(choice: ChoiceRecord, tier: Tier) -> AttemptAtWorker | None:
        return next((attempt for attempt in choice.attempts if attempt.tier is tier and attempt.leg is not None), None)


def _end_of(leg: Leg | None, offset: float, closed: float) -> float:
    """When an attempt's work for its request ended."""
    if leg is None:
        return closed
    done = [phase.end_seconds for phase in leg.phases if phase.name != semconv.LOOP_BLOCKED]
    return min(max(done, default=leg.end_seconds) + offset, closed)


def _first_token_left(attempt: AttemptAtWorker) -> float | None:
    assert attempt.leg is not None
    for phase in attempt.leg.phases:
        for event in phase.events:
            if event.name == semconv.FIRST_TOKEN:
                return event.seconds + attempt.offset_seconds
    return None


def _events(phase: Phase, offset: float, low: float, high: float) -> Iterator[SpanEvent]:
    for event in phase.events:
        seconds = event.seconds + offset
        if low <= seconds <= high:
            yield SpanEvent(event.name, seconds, _attributes(event.attributes))


_ATTRIBUTES = msgspec.json.Decoder(dict[str, Attribute])


def _attributes(text: str) -> dict[str, Attribute]:
    """A worker's attributes. It is one of ours, but a damaged text must not cost the trace."""
    if not text:
        return {}
    try:
        return _ATTRIBUTES.decode(text)
    except msgspec.DecodeError:
        return {}
