"""One trace per request: services record each phase of a request that is over, and trace ids tie the phases together.

The gateway begins the root span and sends its `traceparent` along with the request; workers record finished phases
under it, with times of the event loop's clock. Recording never waits and never raises: a lost span is no error of a
request. `mesh/otlp.py` exports spans; `Silent` records nothing; `RecordingTelemetry` is for tests and the simulation
(it counts its ids, so equal runs give equal traces)."""

import itertools
import re
from dataclasses import dataclass, field
from typing import Protocol

from opentelemetry.trace import SpanContext, TraceFlags

Attribute = str | int | float | bool

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


class Root(Protocol):
    """The span of a whole request, open until the gateway has sent its last byte."""

    @property
    def traceparent(self) -> str:
        """Trace context for the workers that record below this span; empty if nothing is recorded."""

    def end(self, end_seconds: float, **attributes: Attribute) -> None:
        """Finish the span; only the first call counts."""


class Telemetry(Protocol):
    @property
    def dropped(self) -> int:
        """Spans that were recorded and are lost."""

    def begin(self, name: str, traceparent: str | None, start_seconds: float, **attributes: Attribute) -> Root:
        """Open a request's root span, below the client's own span if `traceparent` is valid."""

    def record(
        self, name: str, traceparent: str, start_seconds: float, end_seconds: float, **attributes: Attribute
    ) -> None:
        """Record a phase that is over. Without a valid traceparent the phase is dropped."""

    def close(self) -> None:
        """Send the spans that are still buffered; waits a second or two at most."""


def make_traceparent(context: SpanContext) -> str:
    """The context as a `traceparent` header: W3C trace context, version 00."""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def parse_traceparent(text: str | None) -> SpanContext | None:
    """Read a `traceparent` header. An invalid one gives None: it is no reason to refuse a client's request."""
    match = _TRACEPARENT.fullmatch((text or "").strip())
    if match is None or match[1] == "ff" or (match[1] == "00" and match[5]):
        return None
    context = SpanContext(
        int(match[2], 16), int(match[3], 16), is_remote=True, trace_flags=TraceFlags(int(match[4], 16))
    )
    return context if context.is_valid else None


@dataclass(frozen=True, slots=True)
class SilentRoot:
    traceparent: str  # the client's own, so that spans of other services still join its trace

    def end(self, end_seconds: float, **attributes: Attribute) -> None:
        pass


class Silent:
    """Records nothing."""

    dropped = 0

    def begin(self, name: str, traceparent: str | None, start_seconds: float, **attributes: Attribute) -> Root:
        return SilentRoot(traceparent or "")

    def record(
        self, name: str, traceparent: str, start_seconds: float, end_seconds: float, **attributes: Attribute
    ) -> None:
        pass

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class SpanRecord:
    """A finished span; its times are those of the clock by which it was recorded."""

    service: str  # name of the service that recorded it
    name: str  # name of the phase
    trace_id: int
    span_id: int
    parent_id: int  # 0: the span is the root of its trace
    start_seconds: float
    end_seconds: float
    attributes: dict[str, Attribute] = field(default_factory=dict)


class RecordingTelemetry:
    """Keeps finished spans in `spans`; a `sibling` records for another service into the same list."""

    dropped = 0

    def __init__(self, service: str = "test") -> None:
        self.service = service
        self.spans: list[SpanRecord] = []
        self._ids = itertools.count(1)

    def sibling(self, service: str) -> "RecordingTelemetry":
        other = RecordingTelemetry(service)
        other.spans, other._ids = self.spans, self._ids
        return other

    def begin(self, name: str, traceparent: str | None, start_seconds: float, **attributes: Attribute) -> Root:
        return _RecordingRoot(self, name, parse_traceparent(traceparent), start_seconds, attributes)

    def record(
        self, name: str, traceparent: str, start_seconds: float, end_seconds: float, **attributes: Attribute
    ) -> None:
        parent = parse_traceparent(traceparent)
        if parent is not None:
            self.keep(name, self.context(parent), parent, start_seconds, end_seconds, attributes)

    def close(self) -> None:
        pass

    def context(self, parent: SpanContext | None) -> SpanContext:
        number = next(self._ids)
        trace_id = parent.trace_id if parent else number
        return SpanContext(trace_id, number, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))

    def keep(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        start_seconds: float,
        end_seconds: float,
        attributes: dict[str, Attribute],
    ) -> None:
        parent_id = parent.span_id if parent else 0
        ids = (context.trace_id, context.span_id, parent_id)
        self.spans.append(SpanRecord(self.service, name, *ids, start_seconds, end_seconds, attributes))


class _RecordingRoot:
    def __init__(
        self,
        telemetry: RecordingTelemetry,
        name: str,
        parent: SpanContext | None,
        start_seconds: float,
        attributes: dict[str, Attribute],
    ) -> None:
        self._telemetry, self._name, self._parent = telemetry, name, parent
        self._start_seconds, self._attributes = start_seconds, attributes
        self._context = telemetry.context(parent)
        self._ended = False
        self.traceparent = make_traceparent(self._context)

    def end(self, end_seconds: float, **attributes: Attribute) -> None:
        if not self._ended:
            self._ended = True
            merged = {**self._attributes, **attributes}
            self._telemetry.keep(self._name, self._context, self._parent, self._start_seconds, end_seconds, merged)
