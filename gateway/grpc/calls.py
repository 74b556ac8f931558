"""The frame of every method of the public gRPC API: bytes become messages, exceptions become statuses.

Handlers take raw bytes. gRPC's own deserializer answers bytes that are no message with UNKNOWN, and writes a traceback
into the log; here they are an error of the closed list. Large messages are weighed before they are parsed."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from gateway.core.client_errors import client_error
from gateway.core.interface import Core
from gateway.fairness.client_turns import WHOSE
from gateway.grpc import errors as grpc_errors
from gateway.grpc.wire import MOST_FIELDS, PACKED_PER_FIELD, is_heavy
from gateway.tenants.admission import OPEN, Admission
from gateway.validation.client_request import validate_request_id
from mesh.errors import BodyTooLarge, InvalidRequest

LARGE_BYTES = 131_072  # handling a message of this size takes some milliseconds at most

ADMISSION: ContextVar[Admission] = ContextVar("admission", default=OPEN)  # admission of the call that this task serves

Kind = TypeVar("Kind", bound=Message)


@dataclass(slots=True)
class Call:
    """One call: its name, which a message may still replace, and the metadata that came with it."""

    request_id: str
    metadata: Mapping[str, Any]
    raw: bytes
    admission: Admission

    async def message(self, kind: type[Kind]) -> Kind:
        if len(self.raw) >= LARGE_BYTES and await is_heavy(self.raw, kind.DESCRIPTOR):
            raise BodyTooLarge(
                f"the message has more than {MOST_FIELDS} fields, nested ones included ({PACKED_PER_FIELD} entries of "
                "a list of numbers count as one); the gateway reads no larger one"
            )
        try:
            return kind.FromString(self.raw)
        except DecodeError:
            name = kind.DESCRIPTOR.full_name
            raise InvalidRequest(None, f"these {len(self.raw)} bytes are no {name}") from None


def begin(raw: bytes, context: Any, random: Random) -> Call:
    metadata, admission = dict(context.invocation_metadata() or ()), ADMISSION.get()
    WHOSE.set(admission.tenant or context.peer().rpartition(":")[0])
    return Call(f"{random.getrandbits(128):032x}", metadata, raw, admission)


@asynccontextmanager
async def answered(raw: bytes, context: Any, core: Core, random: Random) -> AsyncGenerator[Call, None]:
    """A call without a trace: whatever is raised inside becomes its status."""
    call = begin(raw, context, random)
    try:
        if given := call.metadata.get("x-request-id"):
            call.request_id = validate_request_id(given)
        yield call
        context.set_trailing_metadata((("x-request-id", call.request_id),))
    except Exception as error:
        known = client_error(error, call.request_id)
        core.count_error(known, refused=True)
        await grpc_errors.abort(context, known, call.request_id)


def handlers(service: Any, servicer: Any) -> grpc.GenericRpcHandler:
    """Handlers for a service's descriptor. The servicer has one method for each, which takes the request's bytes."""
    found = dict[str, Any]()
    for method in service.methods:
        make = grpc.unary_stream_rpc_method_handler if method.server_streaming else grpc.unary_unary_rpc_method_handler
        answer: Any = GetMessageClass(method.output_type)
        found[method.name] = make(getattr(servicer, method.name), response_serializer=answer.SerializeToString)
    return grpc.method_handlers_generic_handler(service.full_name, found)
