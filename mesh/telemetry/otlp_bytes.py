"""Encodes spans as an OTLP export request: the bytes of its protobuf message, written directly.

A gateway that traces every request encodes thousands of spans a second in a thread that shares the interpreter with its
event loop. The same attributes come again and again; they are looked up here, where building messages would set every
field of every one. The numbers below are the fields of OpenTelemetry's messages, version 1; a test reads the bytes with
OpenTelemetry's own classes."""

from functools import lru_cache
from struct import Struct

from mesh.telemetry.semconv import SERVICE_NAME
from mesh.telemetry.spans import Attribute, Attributes, SpanEvent, SpanKind, SpanRecord

_RESOURCE_SPANS = 1  # field of ExportTraceServiceRequest
_RESOURCE, _SCOPE_SPANS = 1, 2  # fields of ResourceSpans
_RESOURCE_ATTRIBUTES = 1  # field of Resource
_SCOPE, _SPANS = 1, 2  # fields of ScopeSpans
_SCOPE_NAME = 1  # field of InstrumentationScope
_NAME, _ATTRIBUTES, _EVENTS, _LINKS, _STATUS = 5, 9, 11, 13, 15  # fields of Span
_EVENT_NAME, _EVENT_ATTRIBUTES = 2, 3  # fields of Span.Event
_MESSAGE = 2  # field of Status
_KEY, _VALUE = 1, 2  # fields of KeyValue
_STRING, _ARRAY, _ITEMS = 1, 5, 1  # fields of AnyValue, and the field of ArrayValue
_BOOL_TAG, _INT_TAG, _FLOAT_TAG = b"\x10", b"\x18", b"\x21"  # AnyValue's tags: fields 2 and 3 as varints, 4 as a double
_ERROR = b"\x18\x02"  # Status.code = STATUS_CODE_ERROR
_KINDS = {SpanKind.INTERNAL: 1, SpanKind.SERVER: 2, SpanKind.CLIENT: 3}

_LONG_TEXT = 256  # characters; longer values are not kept: a client may have written them

_double = Struct("<d").pack
_ids = Struct(">B B 16s B B Q").pack  # trace_id and span_id with the tags and sizes in front of them
_parent = Struct(">B B Q").pack
_times = Struct("<B B B Q B Q").pack  # kind, start_time_unix_nano, end_time_unix_nano
_time = Struct("<B Q").pack


class Batch:
    """Spans that are sent together: each service is a resource of its own."""

    def __init__(self, offset_seconds: float) -> None:
        """`offset_seconds`: to add to the spans' times for the wall clock."""
        self.spans = 0
        self._offset, self._by_service = offset_seconds, dict[str, list[bytes]]()

    def add(self, span: SpanRecord) -> None:
        self.spans += 1
        self._by_service.setdefault(span.service, []).append(_field(_SPANS, _span(span, self._offset)))

    def encoded(self) -> bytes:
        """An ExportTraceServiceRequest."""
        scope = _field(_SCOPE, _field(_SCOPE_NAME, b"baton"))
        return b"".join(
            _field(
                _RESOURCE_SPANS,
                _field(_RESOURCE, _attribute(_RESOURCE_ATTRIBUTES, SERVICE_NAME, service))
                + _field(_SCOPE_SPANS, scope + b"".join(spans)),
            )
            for service, spans in self._by_service.items()
        )


def _span(span: SpanRecord, offset: float) -> bytes:
    trace_id = span.trace_id.to_bytes(16, "big")
    start, end = int((span.start_seconds + offset) * 1e9), int((span.end_seconds + offset) * 1e9)
    parts = [_ids(0x0A, 16, trace_id, 0x12, 8, span.span_id)]
    if span.parent_id:
        parts.append(_parent(0x22, 8, span.parent_id))
    parts += _text(_NAME, span.name), _times(0x30, _KINDS[span.kind], 0x39, start, 0x41, end)
    _add(parts, _ATTRIBUTES, span.attributes)
    parts += [_field(_EVENTS, _event(event, offset)) for event in span.events]
    for link in span.links:
        parts.append(_field(_LINKS, _ids(0x0A, 16, link.trace_id.to_bytes(16, "big"), 0x12, 8, link.span_id)))
    if span.error:
        parts.append(_field(_STATUS, _make_text(_MESSAGE, span.error) + _ERROR))
    return b"".join(parts)


def _event(event: SpanEvent, offset: float) -> bytes:
    parts = [_time(0x09, int((event.seconds + offset) * 1e9)), _text(_EVENT_NAME, event.name)]
    _add(parts, _EVENT_ATTRIBUTES, event.attributes)
    return b"".join(parts)


def _add(parts: list[bytes], number: int, attributes: Attributes) -> None:
    for key, value in attributes.items():
        if type(value) is float:  # hardly two are equal
            parts.append(_before_float(number, key) + _double(value))
        elif type(value) is str and len(value) > _LONG_TEXT:
            parts.append(_make_attribute(number, key, value))
        else:
            parts.append(_attribute(number, key, value))


def _make_attribute(number: int, key: str, value: Attribute) -> bytes:
    return _field(number, _text(_KEY, key) + _field(_VALUE, _value(value)))


_attribute = lru_cache(maxsize=4096, typed=True)(_make_attribute)  # typed: 1, 1.0 and True are not the same


@lru_cache(maxsize=512)
def _before_float(number: int, key: str) -> bytes:
    """The bytes before the eight of a float's value."""
    return _make_attribute(number, key, 0.0)[:-8]


def _value(value: Attribute) -> bytes:
    if isinstance(value, bool):
        return _BOOL_TAG + _varint(value)
    if isinstance(value, int):
        return _INT_TAG + _varint(value & 0xFFFF_FFFF_FFFF_FFFF)
    if isinstance(value, float):
        return _FLOAT_TAG + _double(value)
    if isinstance(value, str):
        return _make_text(_STRING, value)
    return _field(_ARRAY, b"".join(_field(_ITEMS, _make_text(_STRING, item)) for item in value))


def _make_text(number: int, text: str) -> bytes:
    return _field(number, text.encode(errors="replace"))


_text = lru_cache(maxsize=1024)(_make_text)  # for names and keys


def _field(number: int, body: bytes) -> bytes:
    """A field that holds bytes, a text or a message. No field here has a number above 15."""
    size = len(body)
    return (_BEFORE[number][size] if size < 128 else bytes((number << 3 | 2,)) + _varint(size)) + body


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)


_BEFORE = [[bytes((number << 3 | 2, size)) for size in range(128)] for number in range(16)]
