"""The interceptor that asks for a key, around every method of the clients' gRPC port but health and reflection.

It sees a call's metadata and never its message. gRPC runs each call in a task of its own, so the admission goes to the
method in a context variable, which only gateway/grpc/calls.py reads."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from random import Random
from typing import Any, NoReturn

import grpc

from gateway.grpc import errors as grpc_errors
from gateway.grpc.calls import ADMISSION, begin
from gateway.tenants.credentials import CallerCredentials, key_in
from gateway.tenants.tenants import Tenants, Work
from gateway.validation.client_request import is_request_id
from mesh.errors import BatonError

OPEN_SERVICES = ("/grpc.health.v1.Health/", "/grpc.reflection.")
COMPUTES, LOOKS = ("CountTokens", "Tokenize", "Detokenize"), ("ListModels",)  # methods that generate no token
NAMES = ("x509_common_name", "x509_subject_alternative_name")


class GrpcGuard(grpc.aio.ServerInterceptor):
    def __init__(self, tenants: Tenants, *, count_error: Callable[..., None], random: Random) -> None:
        self._tenants = tenants
        self._count_error = count_error
        self._random = random

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        handler, method = await continuation(handler_call_details), handler_call_details.method
        if handler is None or method.startswith(OPEN_SERVICES):
            return handler
        try:
            self._check_key(handler_call_details.invocation_metadata)
        except BatonError as error:
            return self._refusal(error)
        work = work_of(method)
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(
                self._one(handler.unary_unary, work), handler.request_deserializer, handler.response_serializer
            )
        if handler.unary_stream is not None:
            return grpc.unary_stream_rpc_method_handler(
                self._many(handler.unary_stream, work), handler.request_deserializer, handler.response_serializer
            )
        raise TypeError(f"{method}: no guard stands before a stream of requests")

    def _check_key(self, metadata: Any) -> None:
        """Raise Unauthenticated for a call that no certificate could admit either. Its message has not come yet."""
        key = key_in(_pairs(metadata))
        if key is not None or not self._tenants.takes_certificates:
            self._tenants.check(CallerCredentials(key))

    def _refusal(self, error: BatonError) -> Any:
        """A method that refuses. It takes a stream of requests, because gRPC does not wait for the first one of a
        stream: a client without a key cannot make the gateway hold messages."""

        async def refuse(_requests: Any, context: Any) -> None:
            await self._abort(context, error)

        return grpc.stream_stream_rpc_method_handler(refuse)

    def _one(self, answer: Any, work: Work) -> Any:
        async def guarded(raw: bytes, context: Any) -> Any:
            async with self._admitted(context, work):
                return await answer(raw, context)

        return guarded

    def _many(self, answer: Any, work: Work) -> Any:
        async def guarded(raw: bytes, context: Any) -> AsyncGenerator[Any, None]:
            async with self._admitted(context, work), aclosing(answer(raw, context)) as messages:
                async for message in messages:
                    yield message

        return guarded

    @asynccontextmanager
    async def _admitted(self, context: Any, work: Work) -> AsyncGenerator[None, None]:
        try:
            admission = self._tenants.enter(self._credentials(context), work)
        except BatonError as error:
            await self._abort(context, error)
        ADMISSION.set(admission)
        try:
            yield
        finally:
            admission.close()

    async def _abort(self, context: Any, error: BatonError) -> NoReturn:
        self._count_error(error, refused=True)
        call = begin(b"", context, self._random)
        given = str(call.metadata.get("x-request-id", ""))
        await grpc_errors.abort(context, error, given if is_request_id(given) else call.request_id)

    def _credentials(self, context: Any) -> CallerCredentials:
        key = key_in(_pairs(context.invocation_metadata()))
        if key is not None or not self._tenants.takes_certificates:
            return CallerCredentials(key)
        shown = context.auth_context() or {}
        return CallerCredentials(None, frozenset(_text(value) for name in NAMES for value in shown.get(name, ())))


def work_of(method: str) -> Work:
    name = method.rpartition("/")[2]
    return Work.COMPUTES if name in COMPUTES else Work.LOOKS if name in LOOKS else Work.GENERATES


def _pairs(metadata: Any) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode() if isinstance(value, str) else value) for name, value in metadata or ()]


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
