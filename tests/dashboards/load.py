"""The load of the dashboards' check: all kinds of requests at once, and the faults that some panels exist for.

Every request that is not answered here is part of the plan: cancelled by the client, refused by the gateway, cut by its
deadline. The faults kill and stop worker processes of a running mesh, whose supervisor starts them again."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import grpc
from openai import APIError, AsyncOpenAI

from cli.local_mesh.running import complete
from cli.local_mesh.supervisor import Supervisor
from mesh.config.services import MeshConfig
from tests.harness.client import MeshClient, TokenRequest, prompt_of

CLIENTS = 4  # requests at a time
BURST = 16  # requests that come at once, so that some of them wait
DEADLINE_SECONDS = 0.02  # too short for the request that carries it
SILENT_SECONDS = 7.0  # longer than a lease
RECOVERY_SECONDS = 60.0
TALKS = (
    "Tell me a story.",
    "What is Baton?",
    "Count from one to ten.",
    "What is 12 plus 30?",
    "Make a list of fruits.",
)


class MixedLoad:
    def __init__(self, http: str, grpc_address: str, random: Random) -> None:
        self.sent: Counter[str] = Counter()
        self.surprises: list[str] = []  # errors that are no part of the plan
        self._client = MeshClient(grpc_address, traceparent=self._traceparent)
        self._openai = AsyncOpenAI(base_url=f"http://{http}/v1", api_key="none", max_retries=0)
        self._random = random
        self._shared = prompt_of(random.randbytes(320), 1)
        kinds: list[tuple[Callable[[], Coroutine[Any, Any, None]], int]] = [
            (self.remote, 6),
            (self.alike, 4),
            (self.short, 3),
            (self.talk, 3),
            (self.cancelled, 2),
            (self.refused, 1),
            (self.late, 1),
        ]
        self._kinds = [kind for kind, weight in kinds for _ in range(weight)]

    async def run(self, until: asyncio.Event) -> None:
        """Keep CLIENTS requests running until the event is set."""
        await asyncio.gather(*(self._one_after_another(until) for _ in range(CLIENTS)))

    async def burst(self) -> None:
        await asyncio.gather(*(self.remote() for _ in range(BURST)))

    async def _one_after_another(self, until: asyncio.Event) -> None:
        while not until.is_set():
            await self._random.choice(self._kinds)()

    # ---- the kinds of requests

    async def remote(self) -> None:
        """A prompt that no cache has: prefill computes it."""
        await self._ask("remote", self._fresh(self._random.randrange(150, 900)), 48)

    async def alike(self) -> None:
        """A prompt that begins like others: after the first time the caches have nearly all of it."""
        await self._ask("alike", (*self._shared, *self._fresh(4)), 32)

    async def short(self) -> None:
        """A prompt of less than a page: decode computes it."""
        await self._ask("short", self._fresh(12), 24)

    async def talk(self) -> None:
        """A chat over the OpenAI API, streamed."""
        self.sent["talk"] += 1
        messages: Any = [{"role": "user", "content": self._random.choice(TALKS)}]
        try:
            stream = await self._openai.chat.completions.create(
                model=(await self._openai.models.list()).data[0].id, messages=messages, max_tokens=48, stream=True
            )
            async for _ in stream:
                pass
        except APIError as error:
            self.surprises.append(f"talk: {error}")

    async def cancelled(self) -> None:
        self.sent["cancelled"] += 1
        call = self._client.call(TokenRequest(self._name(), self._fresh(200), 400))
        try:
            for _ in range(4):
                await call.read()
        except grpc.aio.AioRpcError as error:
            self.surprises.append(f"cancelled: {error.details()}")
        call.cancel()

    async def refused(self) -> None:
        """A prompt longer than the model's context."""
        self.sent["refused"] += 1
        seen = await self._client.ask(TokenRequest(self._name(), self._fresh(5000), 8))
        if not seen.error:
            self.surprises.append("refused: a prompt of 5000 tokens was answered")

    async def late(self) -> None:
        """A request whose deadline passes before its answer is there, or is sure to: then the gateway refuses it."""
        self.sent["late"] += 1
        try:
            async for _ in self._client.call(TokenRequest(self._name(), self._fresh(900), 400), DEADLINE_SECONDS):
                pass
            self.surprises.append("late: a request was answered within its deadline")
        except grpc.aio.AioRpcError as error:
            if error.code() not in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED):
                self.surprises.append(f"late: {error.details()}")

    async def aclose(self) -> None:
        await self._client.aclose()
        await self._openai.close()

    async def _ask(self, kind: str, prompt: tuple[int, ...], tokens: int) -> None:
        self.sent[kind] += 1
        seed = self._random.choice((None, self._random.randrange(1 << 30)))
        seen = await self._client.ask(TokenRequest(self._name(), prompt, tokens, seed))
        if seen.error and not seen.error.startswith("ABORTED"):  # three of the faults hit this request
            self.surprises.append(f"{kind}: {seen.error}")

    def _traceparent(self) -> str:
        """A sampled trace context of the client's own, so that exemplars have a trace to lead to."""
        return f"00-{self._random.getrandbits(128) or 1:032x}-{self._random.getrandbits(64) or 1:016x}-01"

    def _name(self) -> str:
        return f"dashboards-{self.sent.total()}"

    def _fresh(self, length: int) -> tuple[int, ...]:
        return prompt_of(self._random.randbytes(length - 1), self._random.randrange(90))


class Faults:
    """Kills and stops worker processes of a mesh, one fault at a time; each ends with a complete mesh."""

    def __init__(self, mesh: MeshConfig, supervisor: Supervisor) -> None:
        self._mesh, self._supervisor = mesh, supervisor

    async def kill(self, name: str) -> None:
        self._signal(name, signal.SIGKILL)
        await asyncio.sleep(1.0)  # until the gateway has seen the death
        await complete(self._mesh, RECOVERY_SECONDS)

    async def silence(self, name: str) -> None:
        """Stop a process for longer than a lease. It may be killed for that; then it is started again."""
        pid = self._signal(name, signal.SIGSTOP)
        await asyncio.sleep(SILENT_SECONDS)
        if self._pid(name) == pid:
            self._signal(name, signal.SIGCONT)
        await complete(self._mesh, RECOVERY_SECONDS)

    def _signal(self, name: str, number: int) -> int:
        pid = self._pid(name)
        if pid is None:
            raise RuntimeError(f"{name} does not run")
        os.kill(pid, number)
        return pid

    def _pid(self, name: str) -> int | None:
        (running,) = (one for one in self._supervisor.running if one.service.name == name)
        return running.process.pid if running.process and running.process.returncode is None else None
