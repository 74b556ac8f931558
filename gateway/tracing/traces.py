"""The traces of the last requests: begins a record for each request, adds what workers report, exports finished trees.

A request is finished when its last byte is sent and every worker of its attempts has reported, or has had
`SETTLE_SECONDS` for it. Spans are made when somebody looks, or in the exporter's thread."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from weakref import ref

from gateway.tenants.admission import OPEN, Admission
from gateway.tracing.record import AttemptAtWorker, RequestRecord, no_report
from gateway.tracing.request_log import log_request
from gateway.tracing.slo_limits import NO_LIMITS, Limits
from gateway.tracing.tree import assemble, step_spans
from mesh.messages.jobs import Ticket, Tier
from mesh.messages.reports import Phases
from mesh.telemetry.spans import Attributes, KeptHere, SpanRecord, Telemetry, TraceContext, parse_traceparent
from mesh.timing.loop_monitor import LoopMonitor

KEPT_REQUESTS = 512
SETTLE_SECONDS = 2.0  # time after a request's end in which a worker's report still belongs to its trace

Decode = Callable[[Sequence[int], str], str]


class RecentTraces:
    def __init__(
        self,
        telemetry: Telemetry | None = None,
        *,
        random: Random,
        service: str = "gateway",
        limits: Limits = NO_LIMITS,
        admission: Admission = OPEN,
    ) -> None:
        """`admission`: that of requests until a front door sets theirs."""
        self._telemetry, self._admission = telemetry or KeptHere(), admission
        self._random = random
        self._service = service
        self._limits = limits
        self._decode: Decode | None = None
        self._monitor = LoopMonitor()
        self._records: OrderedDict[int, RequestRecord] = OrderedDict()  # by the root's span id, the oldest first
        self._awaited: dict[tuple[Ticket, Tier], tuple[RequestRecord, AttemptAtWorker]] = {}

    def show_content(self, decode: Decode) -> None:
        """The log line of each request shows prompts and outputs from now on; `decode` makes text of the tokens
        of a model."""
        self._decode = decode

    @property
    def records_phases(self) -> bool:
        """Whether any request is recorded: otherwise workers' clocks need not be measured."""
        return self._telemetry.share >= 0

    def begin(self, server: str, traceparent: str, attributes: Attributes, *, operation: str = "") -> RequestRecord:
        """The head of a request has arrived. A client's own trace context decides whether the request is recorded."""
        parent, clock = parse_traceparent(traceparent), asyncio.get_running_loop().time
        share = self._telemetry.share
        chosen = parent.sampled if parent is not None else share >= 1 or self._random.random() < share
        trace_id = parent.trace_id if parent is not None else self._random.getrandbits(128) or 1
        recorded = chosen and self.records_phases
        record = RequestRecord(
            context=TraceContext(trace_id, self._random.getrandbits(64) or 1, sampled=recorded),
            parent_id=parent.span_id if parent is not None else 0,
            recorded=recorded,
            server=server,
            start_seconds=clock(),
            clock=clock,
            expect=no_report,
            on_end=self._ended,
            attributes=dict(attributes),
            admission=self._admission,
            operation=operation,
            decode=self._decode,
        )
        if recorded:
            record.expect = partial(self._expect, ref(record))
            self._monitor.begin()
        self._records[record.context.span_id] = record
        while len(self._records) > KEPT_REQUESTS:
            self._records.popitem(last=False)
        return record

    def loop_active(self) -> None:
        """Something happens that the event loop has to handle."""
        self._monitor.active()

    # ---- what workers report

    def on_phases(self, worker: str, phases: Phases, offset_seconds: float) -> None:
        for leg in phases.legs:
            for tier in Tier:
                awaited = self._awaited.get((leg.ticket, tier))
                if awaited is not None and awaited[1].worker == worker:
                    record, attempt = awaited
                    del self._awaited[leg.ticket, tier]
                    attempt.leg, attempt.offset_seconds = leg, offset_seconds
                    self._settle(record)
        if phases.steps:
            trace_ids = [self._random.getrandbits(128) or 1 for _ in phases.steps]
            self._telemetry.export(lambda: step_spans(worker, phases.steps, trace_ids, offset_seconds))

    # ---- a request ends

    def _expect(self, find: "ref[RequestRecord]", attempt: AttemptAtWorker) -> None:
        if (record := find()) is not None:
            self._awaited[attempt.ticket, attempt.tier] = (record, attempt)

    def _ended(self, record: RequestRecord) -> None:
        if record.recorded:
            record.blocked = tuple(self._monitor.end(record.start_seconds))
            asyncio.get_running_loop().call_later(SETTLE_SECONDS, self._finish, record)
        log_request(record)
        self._settle(record)

    def _settle(self, record: RequestRecord) -> None:
        attempts = [attempt for choice in record.choices for attempt in choice.attempts]
        if record.end_seconds is not None and (
            not record.recorded or all(a.leg is not None or a.died for a in attempts)
        ):
            self._finish(record)

    def _finish(self, record: RequestRecord) -> None:
        """Every worker has reported, or had its time: the tree does not change any more."""
        if record.complete:
            return
        record.complete = True
        for choice in record.choices:
            for attempt in choice.attempts:
                self._awaited.pop((attempt.ticket, attempt.tier), None)
        if record.recorded:
            self._telemetry.export(lambda: assemble(record, self._service, self._limits))

    # ---- questions

    def counts(self) -> dict[str, int]:
        """Counters of the export since the start, and milliseconds for which the gateway's event loop stood still while
        requests were recorded."""
        return {**self._telemetry.counts(), "loop_blocked_ms": round(self._monitor.blocked_seconds * 1000)}

    def latest(self, limit: int) -> list[RequestRecord]:
        """The last requests, the newest first."""
        return [record for record, _ in zip(reversed(self._records.values()), range(limit), strict=False)]

    def spans(self, record: RequestRecord) -> list[SpanRecord]:
        return assemble(record, self._service, self._limits) if record.recorded else []
