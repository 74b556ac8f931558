"""A small async client of baton.inference.v1 that survives its gateway.

It knows the addresses of one or more gateways. When a gateway breaks in the middle of an answer, the next one continues
from the tokens that have arrived: with the same seed and the same numerics class, so the text goes on as if nothing had
happened. Errors that another gateway would repeat are raised as they are. It needs grpcio and protobuf only."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import grpc

from baton.inference.v1 import inference_pb2 as pb
from baton.inference.v1 import inference_pb2_grpc as pb_grpc

_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)
_BROKEN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.CANCELLED)


class ProtocolError(Exception):
    """A gateway ended a stream without finishing the answer, and no other gateway is left."""


@dataclass(slots=True)
class _Progress:
    """The parts of an answer that this client has."""

    started: pb.Started | None = None
    tokens: dict[int, list[int]] = field(default_factory=dict)
    classes: dict[int, pb.NumericsClass] = field(default_factory=dict)  # by choice, where not Started's
    finished: set[int] = field(default_factory=set)

    def is_news(self, event: pb.StreamGenerateResponse) -> bool:
        """Record an event. False for an event that a gateway which continues the answer repeats."""
        kind = event.WhichOneof("event")
        if kind == "started":
            news = self.started is None
            self.started = self.started or event.started
            return news
        if kind == "delta":
            self.tokens.setdefault(event.delta.index, []).extend(event.delta.token_ids)
            if event.delta.HasField("numerics_class"):
                self.classes[event.delta.index] = event.delta.numerics_class
        if kind == "choice_finished":
            news = event.choice_finished.index not in self.finished
            self.finished.add(event.choice_finished.index)
            return news
        return True

    def rest_of(self, request: pb.GenerateRequest) -> pb.GenerateRequest:
        """The request for the missing part of the answer."""
        if self.started is None:
            return request
        rest = pb.GenerateRequest()
        rest.CopyFrom(request)
        emitted = {choice.index: list(choice.token_ids) for choice in request.emitted}
        del rest.emitted[:]
        for index in sorted({*emitted, *self.tokens}):
            token_ids = emitted.get(index, []) + self.tokens.get(index, [])
            rest.emitted.add(index=index, token_ids=token_ids, numerics_class=self.classes.get(index))
        rest.sampling.seed = self.started.seed
        if self.started.numerics_class.name:
            rest.numerics_class.CopyFrom(self.started.numerics_class)
        rest.request_id = self.started.request_id
        return rest


class Client:
    """`async with Client("127.0.0.1:50051") as client: print(await client.generate_text("Once"))`"""

    def __init__(
        self, *addresses: str, credentials: grpc.ChannelCredentials | None = None, server_name: str = ""
    ) -> None:
        """`credentials` are those of grpc.ssl_channel_credentials; None: plain text. `server_name` is the name that the
        gateways' certificates carry (their `tls_name`); empty: each gateway's carries the host of its address."""
        if not addresses:
            raise ValueError("addresses: name at least one gateway as host:port")
        options = (*_OPTIONS, *((("grpc.ssl_target_name_override", server_name),) if server_name else ()))
        self._channels = [
            grpc.aio.insecure_channel(address, options=options)
            if credentials is None
            else grpc.aio.secure_channel(address, credentials, options=options)
            for address in addresses
        ]

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()

    async def stream(
        self, request: pb.GenerateRequest, *, timeout_seconds: float | None = None
    ) -> AsyncGenerator[pb.StreamGenerateResponse, None]:
        """Yield events in order, each once. Each gateway is tried once, in the order of the addresses."""
        progress = _Progress()
        last: grpc.aio.AioRpcError | None = None
        for channel in self._channels:
            stub: Any = pb_grpc.InferenceServiceStub(channel)
            call = stub.StreamGenerate(
                pb.StreamGenerateRequest(request=progress.rest_of(request)), timeout=timeout_seconds
            )
            try:
                async for event in call:
                    if progress.is_news(event):
                        yield event
                    if event.WhichOneof("event") == "finished":
                        return
            except grpc.aio.AioRpcError as error:
                if error.code() not in _BROKEN:
                    raise
                last = error
            finally:
                call.cancel()
        raise last or ProtocolError("the stream ended without Finished, and no other gateway is left")

    async def stream_text(
        self, prompt: str | Sequence[int], *, timeout_seconds: float | None = None, **sampling: Any
    ) -> AsyncIterator[str]:
        """Yield the answer's text as it comes; keyword arguments are fields of SamplingOptions and StopOptions."""
        async with aclosing(self.stream(request_of(prompt, **sampling), timeout_seconds=timeout_seconds)) as events:
            async for event in events:
                if event.WhichOneof("event") == "delta" and event.delta.text:
                    yield event.delta.text

    async def generate_text(
        self, prompt: str | Sequence[int], *, timeout_seconds: float | None = None, **sampling: Any
    ) -> str:
        return "".join([text async for text in self.stream_text(prompt, timeout_seconds=timeout_seconds, **sampling)])

    async def models(self) -> list[str]:
        stub: Any = pb_grpc.ModelServiceStub(self._channels[0])
        return [model.name for model in (await stub.ListModels(pb.ListModelsRequest())).models]


def request_of(prompt: str | Sequence[int], *, model: str | None = None, **options: Any) -> pb.GenerateRequest:
    """A request for one prompt. `stop` is a list of stop strings; other options are fields of SamplingOptions and
    StopOptions."""
    request = pb.GenerateRequest(model=model)
    if isinstance(prompt, str):
        request.text = prompt
    else:
        request.token_ids.ids.extend(prompt)
    request.stop.strings.extend(options.pop("stop", ()))
    for name, value in options.items():
        place = next(
            (part for part in (request.sampling, request.stop) if name in part.DESCRIPTOR.fields_by_name), None
        )
        if place is None:
            raise TypeError(f"{name} is neither a field of SamplingOptions nor of StopOptions")
        if name == "token_ids":
            request.stop.token_ids.extend(value)
        else:
            setattr(place, name, value)
    return request
