"""A small async client of baton.inference.v1 that survives its gateway.

It knows the addresses of one or more gateways. When a gateway breaks in the middle of an answer, the next one continues
from the tokens that have arrived: with the same seed and the same numerics class, so the text goes on as if nothing had
happened. While no gateway is there it tries again, with longer and longer pauses, until the call's time or its own
patience is over, and no sooner than the gateways ask (RetryInfo). Errors that another gateway would repeat are raised
as they are. It needs grpcio and protobuf only."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import Message

from baton.inference.v1 import inference_pb2 as pb
from baton.inference.v1 import inference_pb2_grpc as pb_grpc
from baton.pacing import CallPace
from baton.retry_delay import retry_delay

_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 3_000),  # so long one attempt to connect may take
    ("grpc.max_reconnect_backoff_ms", 3_000),
)
# After these errors another gateway may do better. The same one may, a little later, after UNAVAILABLE, and after any
# of them that broke an answer off: a balancer in front of several gateways reports the death of one in its own way.
_BROKEN = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.FAILED_PRECONDITION,  # its workers are of another numerics class
)


Prompt: TypeAlias = str | Sequence[int] | pb.Chat
_PROMPTS = ("text", "chat")  # request_of takes the prompt by its place


class ProtocolError(Exception):
    """A gateway ended a stream without finishing the answer, and no other gateway is left."""


@dataclass(slots=True)
class _Progress:
    """The parts of an answer that this client has."""

    started: pb.Started | None = None
    tokens: dict[int, list[int]] = field(default_factory=dict)
    classes: dict[int, pb.NumericsClass] = field(default_factory=dict)  # by choice, where not Started's
    finished: set[int] = field(default_factory=set)
    scored: int = 1  # the next position of the prompt whose logprob has not come

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
        if kind == "prompt_logprobs":  # parts begin at the same positions at every gateway
            news = event.prompt_logprobs.position >= self.scored
            self.scored = max(self.scored, event.prompt_logprobs.position + len(event.prompt_logprobs.token_ids))
            return news
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
        rest.ClearField("return_prompt_token_ids")
        if self.tokens or self.finished:  # the prompt's logprobs come before
            rest.ClearField("prompt_logprobs")
        rest.sampling.seed = self.started.seed
        if self.started.numerics_class.name:
            rest.numerics_class.CopyFrom(self.started.numerics_class)
        rest.request_id = self.started.request_id
        return rest


class Client:
    """`async with Client("127.0.0.1:50051") as client: print(await client.generate_text("Once"))`"""

    def __init__(
        self,
        *addresses: str,
        credentials: grpc.ChannelCredentials | None = None,
        server_name: str = "",
        patience_seconds: float | None = None,
        api_key: str = "",
    ) -> None:
        """`credentials` are those of grpc.ssl_channel_credentials; None: plain text. `server_name` is the name that the
        gateways' certificates carry (their `tls_name`); empty: each gateway's carries the host of its address.
        `patience_seconds`: how long a call that makes no progress tries again; 0: each gateway is tried once; None:
        until its `timeout_seconds` are over, or 30 s if it has none. `api_key`: the tenant's key, where the gateways
        ask for one."""
        if not addresses:
            raise ValueError("addresses: name at least one gateway as host:port")
        for address in addresses:
            if address.count(":") > 1 and not address.startswith("[") and "://" not in address:
                raise ValueError(f"addresses: {address!r} needs brackets around its IPv6 address: [::1]:50051")
        self._patience_seconds = patience_seconds
        self._metadata = (("authorization", f"Bearer {api_key}"),) if api_key else ()
        self._first = 0  # the channel that the next call tries first: one that worked
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
        self,
        request: pb.GenerateRequest,
        *,
        timeout_seconds: float | None = None,
        continuous_usage: bool = False,
        growing_tool_calls: bool = False,
    ) -> AsyncGenerator[pb.StreamGenerateResponse, None]:
        """Yield events in order, each once, whichever gateways they come from. `timeout_seconds` is the time for all of
        it, pauses included; the other options are those of StreamGenerateRequest."""
        progress, pace = _Progress(), self._pace(timeout_seconds)
        for number, channel in self._in_turn():
            stub: Any = pb_grpc.InferenceServiceStub(channel)
            rest = pb.StreamGenerateRequest(
                request=progress.rest_of(request),
                continuous_usage=continuous_usage,
                growing_tool_calls=growing_tool_calls,
            )
            call, began = stub.StreamGenerate(rest, timeout=pace.seconds_left(), metadata=self._metadata), False
            try:
                async for event in call:
                    began = True
                    if progress.is_news(event):
                        self._first = number
                        pace.goes_on()
                        yield event
                    if event.WhichOneof("event") == "finished":
                        return
                problem: Exception = ProtocolError("the stream ended without Finished, and no other gateway is left")
            except grpc.aio.AioRpcError as error:
                if error.code() not in _BROKEN and retry_delay(error) is None:
                    raise
                problem = error
            finally:
                call.cancel()
            await pace.after(problem, broke_off=began)

    async def stream_text(
        self, prompt: Prompt, *, timeout_seconds: float | None = None, **options: Any
    ) -> AsyncIterator[str]:
        """Yield the answer's text as it comes; the options are those of request_of."""
        async with aclosing(self.stream(request_of(prompt, **options), timeout_seconds=timeout_seconds)) as events:
            async for event in events:
                if event.WhichOneof("event") == "delta" and event.delta.text:
                    yield event.delta.text

    async def generate_text(self, prompt: Prompt, *, timeout_seconds: float | None = None, **options: Any) -> str:
        return "".join([text async for text in self.stream_text(prompt, timeout_seconds=timeout_seconds, **options)])

    async def models(self, *, timeout_seconds: float | None = None) -> list[str]:
        def ask(channel: grpc.aio.Channel, timeout_seconds: float | None) -> Any:
            stub: Any = pb_grpc.ModelServiceStub(channel)
            return stub.ListModels(pb.ListModelsRequest(), timeout=timeout_seconds, metadata=self._metadata)

        return [model.name for model in (await self._anywhere(ask, timeout_seconds)).models]

    async def count_tokens(self, text: str, *, timeout_seconds: float | None = None) -> int:
        def ask(channel: grpc.aio.Channel, timeout_seconds: float | None) -> Any:
            stub: Any = pb_grpc.InferenceServiceStub(channel)
            return stub.CountTokens(pb.CountTokensRequest(text=text), timeout=timeout_seconds, metadata=self._metadata)

        return int((await self._anywhere(ask, timeout_seconds)).tokens)

    async def _anywhere(
        self, ask: Callable[[grpc.aio.Channel, float | None], Any], timeout_seconds: float | None
    ) -> Any:
        """The answer of the first gateway that has one."""
        pace = self._pace(timeout_seconds)
        for number, channel in self._in_turn():
            try:
                answer = await ask(channel, pace.seconds_left())
            except grpc.aio.AioRpcError as error:
                if error.code() not in _BROKEN and retry_delay(error) is None:
                    raise
                await pace.after(error)
            else:
                self._first = number
                return answer

    def _pace(self, timeout_seconds: float | None) -> CallPace:
        return CallPace(timeout_seconds, patience_seconds=self._patience_seconds, gateways=len(self._channels))

    def _in_turn(self) -> Iterator[tuple[int, grpc.aio.Channel]]:
        """All channels again and again, from the one that worked last on; never ends."""
        number = self._first
        while True:
            yield number, self._channels[number]
            number = (number + 1) % len(self._channels)


def request_of(prompt: Prompt, *, model: str | None = None, **options: Any) -> pb.GenerateRequest:
    """A request for one prompt: a text, token ids, or a chat. `stop` is a list of stop strings; other options are
    fields of SamplingOptions, StopOptions and GenerateRequest."""
    request = pb.GenerateRequest(model=model)
    if isinstance(prompt, str):
        request.text = prompt
    elif isinstance(prompt, pb.Chat):
        request.chat.CopyFrom(prompt)
    else:
        request.token_ids.ids.extend(prompt)
    request.stop.strings.extend(options.pop("stop", ()))
    parts = (request.sampling, request.stop, request)
    for name, value in options.items():
        place: Any = next((part for part in parts if name in part.DESCRIPTOR.fields_by_name), None)
        if place is None or name in _PROMPTS:
            raise TypeError(f"{name} is no option: neither a field of SamplingOptions, StopOptions nor GenerateRequest")
        if isinstance(value, Message):
            getattr(place, name).CopyFrom(value)
        elif isinstance(value, Mapping):
            getattr(place, name).update(value)
        elif isinstance(value, Sequence) and not isinstance(value, str):
            getattr(place, name).extend(value)
        else:
            setattr(place, name, value)
    return request
