"""The load of a storm: streams that go on at the other gateway by themselves, and the oracle that judges their answers.

Answers are deterministic, so the oracle is a run of the same requests before the first fault. Every token id of every
answer must be the oracle's, in order; an answer that is shorter or longer is wrong too."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from random import Random

import grpc

from baton.client import Client, ProtocolError, request_of
from baton.inference.v1 import inference_pb2 as pb
from tests.harness.client import prompt_of

ANSWER_SECONDS = 180.0
KINDS = 24  # different requests


@dataclass(slots=True)
class RunningStream:
    """The part of its present answer that one client has."""

    token_ids: list[int] = field(default_factory=list)
    heard_seconds: float = 0.0  # when the last tokens came
    running: bool = False


@dataclass
class StormLoad:
    addresses: list[str]
    random: Random
    on_answer: Callable[[], None] = lambda: None
    oracle: list[list[int]] = field(default_factory=list)
    requests: int = 0
    failed: list[str] = field(default_factory=list)  # why
    wrong_tokens: int = 0  # wrong, missing, repeated or surplus ones
    streams: list[RunningStream] = field(default_factory=list)
    waits: list[tuple[float, float]] = field(default_factory=list)  # when tokens came, and how long none had

    async def learn(self) -> None:
        """The answers of an undisturbed run."""
        async with Client(*self.addresses) as client:
            for number in range(KINDS):
                stream = RunningStream()
                await self._ask(client, number, stream)
                self.oracle.append(stream.token_ids)
        assert all(self.oracle), "every request of the undisturbed run has an answer"

    async def run(self, count: int, over: asyncio.Event) -> None:
        """Run so many clients, each with one request after the other, until `over`; they finish what they have."""
        await asyncio.gather(*(self._client(over) for _ in range(count)))

    async def _client(self, over: asyncio.Event) -> None:
        addresses, stream = list(self.addresses), RunningStream()
        self.random.shuffle(addresses)
        self.streams.append(stream)
        async with Client(*addresses) as client:
            while not over.is_set():
                number = self.random.randrange(KINDS)
                self.requests += 1
                problem = ""
                try:
                    await self._ask(client, number, stream)
                except (grpc.aio.AioRpcError, ProtocolError) as error:
                    problem = f"request {number}: {describe(error)}"
                    self.failed.append(problem)
                self.wrong_tokens += differences(stream.token_ids, self.oracle[number], whole=not problem)
                self.on_answer()

    async def _ask(self, client: Client, number: int, stream: RunningStream) -> None:
        loop = asyncio.get_running_loop()
        stream.token_ids, stream.running, stream.heard_seconds = [], True, loop.time()
        try:
            async with aclosing(client.stream(request(number), timeout_seconds=ANSWER_SECONDS)) as events:
                async for event in events:
                    if event.WhichOneof("event") == "delta":
                        now = loop.time()
                        self.waits.append((now, now - stream.heard_seconds))
                        stream.heard_seconds = now
                        stream.token_ids.extend(event.delta.token_ids)
        finally:
            stream.running = False


def request(number: int) -> pb.GenerateRequest:
    """One of the requests: short and long prompts and answers, greedy ones and such with a seed; some begin alike."""
    random = Random(number)
    shared, own = Random(number % 3).randbytes(40), random.randbytes(random.choice((10, 60, 250)))
    sampling = {"temperature": 1.0, "seed": number} if number % 2 else {"temperature": 0.0}
    count = random.choice((20, 80, 240))
    return request_of(prompt_of(shared + own, number % 3), max_tokens=count, ignore_eos=True, **sampling)


def differences(seen: list[int], wanted: list[int], *, whole: bool) -> int:
    """Tokens that are not the oracle's at their place; of a whole answer also those that it lacks."""
    wrong = sum(one != other for one, other in zip(seen, wanted, strict=False)) + max(0, len(seen) - len(wanted))
    return wrong + (max(0, len(wanted) - len(seen)) if whole else 0)


def describe(error: Exception) -> str:
    return f"{error.code().name}: {error.details()}" if isinstance(error, grpc.aio.AioRpcError) else str(error)
