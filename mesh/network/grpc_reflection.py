"""Server reflection for tools like grpcurl: grpc.reflection.v1, and its older name v1alpha.

grpcio-reflection brings v1alpha only. Both versions have the same messages, so one servicer answers both, and the
descriptors of v1 are made from those of v1alpha by changing the package's name."""

from collections.abc import Sequence
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message import DecodeError
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha._async import ReflectionServicer

ALPHA = "grpc.reflection.v1alpha"
STABLE = "grpc.reflection.v1"
SERVICES = tuple(f"{package}.ServerReflection" for package in (STABLE, ALPHA))


def reflection_handlers(services: Sequence[str]) -> tuple[grpc.GenericRpcHandler, ...]:
    """Handlers of both versions; they describe these services and themselves."""
    servicer: Any = ReflectionServicer((*services, *SERVICES), pool=_Described())
    handler: Any = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        _request,
        reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    return tuple(grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": handler}) for name in SERVICES)


def _request(raw: bytes) -> reflection_pb2.ServerReflectionRequest:
    """Bytes that are no request become an empty one, which the servicer answers with INVALID_ARGUMENT."""
    try:
        return reflection_pb2.ServerReflectionRequest.FromString(raw)
    except DecodeError:
        return reflection_pb2.ServerReflectionRequest()


class _Described:
    """The descriptors of this process and that of v1, which lies in a pool of its own: a library that brings it too
    may be loaded beside."""

    def __init__(self) -> None:
        self._pools = (descriptor_pool.Default(), descriptor_pool.DescriptorPool())
        self._pools[1].AddSerializedFile(_stable().SerializeToString())

    def __getattr__(self, name: str) -> Any:
        first, second = (getattr(pool, name) for pool in self._pools)

        def find(*arguments: Any) -> Any:
            try:
                return first(*arguments)
            except KeyError:
                return second(*arguments)

        return find


def _stable() -> descriptor_pb2.FileDescriptorProto:
    """The descriptor of v1alpha with every name moved to v1."""
    file = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(file)
    file.name, file.package = file.name.replace("v1alpha", "v1"), STABLE
    for message in file.message_type:
        for field in message.field:
            if field.type_name:
                field.type_name = field.type_name.replace(f".{ALPHA}.", f".{STABLE}.")
    for service in file.service:
        for method in service.method:
            method.input_type = method.input_type.replace(f".{ALPHA}.", f".{STABLE}.")
            method.output_type = method.output_type.replace(f".{ALPHA}.", f".{STABLE}.")
    return file
