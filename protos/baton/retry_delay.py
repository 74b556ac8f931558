"""Reads how long a gateway asks its callers to wait: google.rpc.RetryInfo in the status of a call that failed.

The stubs need grpcio and protobuf only, which do not know google.rpc, so the few fields are found by their numbers."""

from collections.abc import Iterator

import grpc
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError

_DETAILS = "grpc-status-details-bin"  # trailing metadata with a google.rpc.Status
_STATUS_DETAILS, _RETRY_DELAY = 3, 1  # fields of Status and RetryInfo
_VARINT, _LENGTH = 0, 2  # wire types


def retry_delay(error: object) -> float | None:
    """Seconds after which the call may be tried again; None: the gateway names no time."""
    if not isinstance(error, grpc.aio.AioRpcError):
        return None
    raw = next((value for key, value in error.trailing_metadata() or () if key == _DETAILS), b"")
    try:
        for packed in _messages(bytes(raw), _STATUS_DETAILS):
            detail = Any.FromString(packed)
            if detail.type_url.endswith("/google.rpc.RetryInfo"):
                delays = [Duration.FromString(each) for each in _messages(detail.value, _RETRY_DELAY)]
                return max(0.0, sum(each.seconds + each.nanos / 1e9 for each in delays))
    except (DecodeError, IndexError, ValueError):  # what stands there is no such status
        pass
    return None


def _messages(raw: bytes, wanted: int) -> Iterator[bytes]:
    """The fields of a message with this number that hold bytes. Only numbers and bytes occur in these messages."""
    at = 0
    while at < len(raw):
        tag, at = _varint(raw, at)
        length, at = _varint(raw, at)
        if tag & 7 == _LENGTH:
            if tag >> 3 == wanted:
                yield raw[at : at + length]
            at += length
        elif tag & 7 != _VARINT:
            raise ValueError(f"field {tag >> 3} has wire type {tag & 7}")


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte, at = raw[at], at + 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at
