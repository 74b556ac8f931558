"""A client of a test mesh: it sends requests over the public gRPC API and keeps the tokens and the bits of their
logprobs."""

import struct
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import grpc

from baton.inference.v1 import inference_pb2 as pb
from baton.inference.v1 import inference_pb2_grpc as pb_grpc
from mesh.network.tls import TlsFiles, open_channel

ANSWER_SECONDS = 240.0  # a machine that compiles beside it answers slowly, and calls that would come late are refused

Call: TypeAlias = "grpc.aio.UnaryStreamCall[pb.StreamGenerateRequest, pb.StreamGenerateResponse]"


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """A prompt of token ids, sampled greedily or with a seed."""

    name: str  # request_id of the message
    prompt: tuple[int, ...]
    max_tokens: int
    seed: int | None = None  # None: greedy

    def message(self) -> pb.GenerateRequest:
        return pb.GenerateRequest(
            request_id=self.name,
            token_ids=pb.TokenIds(ids=self.prompt),
            sampling=pb.SamplingOptions(temperature=0.0 if self.seed is None else 1.0, seed=self.seed or 0),
            stop=pb.StopOptions(max_tokens=self.max_tokens, ignore_eos=True),
            logprobs=pb.LogprobOptions(top=2),
        )


@dataclass(slots=True)
class Seen:
    """The part of an answer that a client received; two are equal only when every bit is."""

    tokens: list[int] = field(default_factory=list)
    logprob_bits: list[bytes] = field(default_factory=list)
    error: str = ""

    def take(self, delta: pb.Delta) -> None:
        self.tokens.extend(delta.token_ids)
        for each in delta.logprobs:
            self.logprob_bits.append(struct.pack(f"<{1 + len(each.top_logprobs)}f", each.logprob, *each.top_logprobs))


class MeshClient:
    """One connection, over which any number of requests may run at once."""

    def __init__(
        self, address: str, tls: TlsFiles | None = None, *, traceparent: Callable[[], str] = lambda: ""
    ) -> None:
        """`traceparent`: the trace context of the next request, as a client sends it that traces; "": none."""
        self._traceparent = traceparent
        self._channel = open_channel(address, tls)
        self._stub = pb_grpc.InferenceServiceStub(self._channel)

    def call(self, request: TokenRequest, seconds: float = ANSWER_SECONDS) -> Call:
        message = pb.StreamGenerateRequest(request=request.message())
        context = self._traceparent()
        metadata = (("traceparent", context),) if context else ()
        call: Call = self._stub.StreamGenerate(message, timeout=seconds, metadata=metadata)
        return call

    async def deltas(self, request: TokenRequest) -> AsyncIterator[pb.Delta]:
        async for event in self.call(request):
            if event.WhichOneof("event") == "delta":
                yield event.delta

    async def ask(self, request: TokenRequest) -> Seen:
        """Wait for the whole answer; an error becomes part of it."""
        seen = Seen()
        try:
            async for delta in self.deltas(request):
                seen.take(delta)
        except grpc.aio.AioRpcError as error:
            seen.error = f"{error.code().name}: {error.details()}"
        return seen

    async def aclose(self) -> None:
        await self._channel.close()


def prompt_of(random_bytes: Sequence[int], first: int) -> tuple[int, ...]:
    """Printable tokens. Prompts with another `first` share no page, and so no cached prefix."""
    return (first % 90 + 33, *(33 + byte % 90 for byte in random_bytes))
