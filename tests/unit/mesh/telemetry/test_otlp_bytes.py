"""The bytes of an export are those that OpenTelemetry's own classes read as the same spans."""

from random import Random

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from mesh.telemetry.otlp_bytes import Batch
from mesh.telemetry.spans import Attribute, SpanEvent, SpanKind, SpanRecord, TraceContext
from tests.harness.collector import spans_of

TEXTS = ["", "x", "gen_ai", "日本語 🦊", "a" * 127, "b" * 128, "c" * 300, "d" * 20_000]
VALUES: list[Attribute] = [
    *TEXTS,
    *(0, 1, -1, 127, 128, 2**31, -(2**63), 2**63 - 1),
    *(True, False, 0.0, 1.0, -1.5, 1e300, 5e-324),
    *((), ("stop",), ("stop", "", "length" * 40)),
]


def read(spans: list[SpanRecord]) -> dict[int, SpanRecord]:
    batch = Batch(0.0)
    for span in spans:
        batch.add(span)
    assert batch.spans == len(spans)
    request = ExportTraceServiceRequest.FromString(batch.encoded())
    services = [resource.resource.attributes[0].value.string_value for resource in request.resource_spans]
    assert len(services) == len({span.service for span in spans}), "a resource for each service"
    found = [span for resource in request.resource_spans for span in spans_of(resource)]
    return {span.span_id: span for span in found}


def attributes(random: Random) -> dict[str, Attribute]:
    return {
        f"{random.choice(('a', 'gen_ai.b', 'c' * 130))}{i}": random.choice(VALUES) for i in range(random.randrange(5))
    }


def made(random: Random, number: int) -> SpanRecord:
    """Times are whole quarters of seconds, which survive the nanoseconds."""
    start = random.randrange(2**22) / 4
    events = tuple(
        SpanEvent(random.choice(TEXTS), start + i / 4, attributes(random)) for i in range(random.randrange(3))
    )
    links = tuple(
        TraceContext(random.getrandbits(128) or 1, random.getrandbits(64) or 1) for _ in range(random.randrange(3))
    )
    return SpanRecord(
        random.choice(["gateway", "decode-0", "p" * 200]),
        random.choice(TEXTS),
        random.choice([1, 2**128 - 1, random.getrandbits(128) or 1]),
        number + 1 if number % 2 else 2**64 - 1 - number,
        random.choice([0, 1, 2**64 - 1]),
        start,
        start + random.randrange(9) / 4,
        attributes(random),
        events,
        links,
        random.choice(list(SpanKind)),
        random.choice(["", "INTERNAL", "the worker died 🦊" * 30]),
    )


def test_any_span_is_read_as_it_was_made() -> None:
    for seed in range(200):
        random = Random(seed)
        spans = [made(random, number) for number in range(random.randrange(1, 12))]
        assert read(spans) == {span.span_id: span for span in spans}


def test_equal_values_of_several_types_keep_their_types() -> None:
    values: list[Attribute] = [1, True, 1.0, 0, False, 0.0, "1"]
    spans = [SpanRecord("gateway", "x", 1, number + 1, 0, 1.0, 2.0, {"k": v}) for number, v in enumerate(values)]
    got = [span.attributes["k"] for _, span in sorted(read(spans).items())]
    assert [(type(value), value) for value in got] == [(type(value), value) for value in values]


def test_a_text_that_is_no_unicode_costs_no_span() -> None:
    (span,) = read([SpanRecord("gateway", "x", 1, 1, 0, 1.0, 2.0, {"k": "lone \ud800 half"})]).values()
    assert span.attributes == {"k": "lone ? half"}


def test_times_are_those_of_the_wall_clock() -> None:
    batch = Batch(1_000.5)
    batch.add(SpanRecord("gateway", "x", 1, 1, 0, 1.0, 2.0, events=(SpanEvent("e", 1.5),)))
    (resource,) = ExportTraceServiceRequest.FromString(batch.encoded()).resource_spans
    (span,) = spans_of(resource)
    assert (span.start_seconds, span.end_seconds, span.events[0].seconds) == (1001.5, 1002.5, 1002.0)
