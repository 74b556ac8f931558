"""Spans as plain values, the W3C trace context that ties them together, and where finished traces go.

The gateway records each request and assembles its spans when the request is over (gateway/observability). It hands them
to a `Telemetry`, which never waits and never raises: a lost span is no error of a request. `mesh/telemetry/otlp.py`
exports spans to a collector; `KeptHere` only keeps them at the gateway; `Silent` records nothing at all;
`RecordingTelemetry` is for tests and the simulation."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple, Protocol

Attribute = str | int | float | bool | tuple[str, ...]
Attributes = Mapping[str, Attribute]

NO_ATTRIBUTES: Attributes = MappingProxyType({})

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A span as other processes name it."""

    trace_id: int  # 128 bits, not zero
    span_id: int  # 64 bits, not zero
    sampled: bool = True  # whether the trace is recorded


def make_traceparent(context: TraceContext) -> str:
    """The context as a `traceparent` header: W3C trace context, version 00."""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{_SAMPLED if context.sampled else 0:02x}"


def parse_traceparent(text: str | None) -> TraceContext | None:
    """Read a `traceparent` header. An invalid one gives None: it is no reason to refuse a client's request."""
    match = _TRACEPARENT.fullmatch((text or "").strip())
    if match is None or match[1] == "ff" or (match[1] == "00" and match[5]):
        return None
    context = TraceContext(int(match[2], 16), int(match[3], 16), bool(int(match[4], 16) & _SAMPLED))
    return context if context.trace_id and context.span_id else None


class SpanKind(Enum):
    INTERNAL = "internal"  # work inside a process
    SERVER = "server"  # a client's whole request
    CLIENT = "client"  # one attempt of a request at a worker, as the gateway sees it


class SpanEvent(NamedTuple):
    name: str
    seconds: float
    attributes: Attributes = NO_ATTRIBUTES


class SpanRecord(NamedTuple):
    """A finished span; its times are those of the gateway's clock. A tuple, for each request makes dozens of them."""

    service: str  # name of the service whose work it is
    name: str
    trace_id: int
    span_id: int
    parent_id: int  # 0: the span is the root of its trace
    start_seconds: float
    end_seconds: float
    attributes: Attributes = NO_ATTRIBUTES
    events: tuple[SpanEvent, ...] = ()
    links: tuple[TraceContext, ...] = ()
    kind: SpanKind = SpanKind.INTERNAL
    error: str = ""  # what went wrong on our side; empty: nothing


Assemble = Callable[[], Sequence[SpanRecord]]


class Telemetry(Protocol):
    @property
    def share(self) -> float:
        """Share of the requests without an incoming trace context that are recorded; below 0: record nothing at all,
        whatever a client asks for."""

    def export(self, assemble: Assemble) -> None:
        """Take a finished trace. `assemble` makes its spans, in another thread if that is better."""

    def counts(self) -> dict[str, int]:
        """Since the start: spans_exported, spans_dropped and traces_dropped; nothing where nothing is exported."""

    def close(self) -> None:
        """Send the spans that are still buffered; waits a second or two at most."""


class Silent:
    """Records nothing."""

    share = -1.0

    def export(self, assemble: Assemble) -> None:
        pass

    def counts(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        pass


class KeptHere(Silent):
    """Exports nothing: the gateway keeps the spans of its last requests, and that is all."""

    def __init__(self, share: float = 1.0) -> None:
        self.share = share


class RecordingTelemetry(KeptHere):
    """Keeps finished spans in `spans`."""

    def __init__(self, share: float = 1.0) -> None:
        super().__init__(share)
        self.spans: list[SpanRecord] = []

    def export(self, assemble: Assemble) -> None:
        self.spans.extend(assemble())
