"""The load that `tests/chaos/cancel.py` cancels: requests of all sizes, ended at a random moment in three ways.

Most requests are cancelled after a random share of the time that first tokens take, at the first token, or some tokens
later. Two stages are too short, or do not exist, in a healthy mesh, so the load provokes them: some requests come
before there is a decode worker, and some while the decode workers are stopped and answer no Ready."""

import asyncio
import itertools
import signal
from collections import deque
from random import Random

import grpc

from tests.chaos.cancel_stages import CANCELLED, Stages
from tests.harness.client import Call, MeshClient, TokenRequest, prompt_of
from tests.harness.mesh import ProcessMesh

STREAMS = 12  # requests under way at once
STALL_SECONDS = 0.25
WINDOW = 12  # requests per stall: as many Readys as two prefill workers send at once
MAX_TOKENS = 160
SHARED_PREFIXES = 4
KINDS = {
    "early": ("queued", "pushing"),
    "first": ("handing_over",),
    "later": ("decoding",),
}  # stages that each kind hits


class CancelLoad:
    def __init__(self, mesh: ProcessMesh, client: MeshClient, stages: Stages, random: Random) -> None:
        self._mesh, self._client, self._stages, self._random = mesh, client, stages, random
        self.errors: list[str] = []  # errors of clients, other than their own cancels
        self._numbers = itertools.count()
        self._first_token_seconds = deque([0.2], maxlen=64)  # times to first tokens of recent requests, at the client
        self._prefixes = [random.randbytes(48) for _ in range(SHARED_PREFIXES)]

    async def without_decode(self, count: int) -> None:
        """Cancel requests that no decode worker can take, few at once: each is to reach the gateway before its cancel
        does."""
        while count > 0:
            delays = [self._random.uniform(0.05, 0.3) for _ in range(min(count, STREAMS))]
            count -= sum(await asyncio.gather(*map(self._after, delays)))

    async def stalls(self, count: int) -> None:
        """Stop the decode workers for short windows; cancel requests inside each window or just behind it."""
        for size in [WINDOW] * (count // WINDOW) + [count % WINDOW]:
            await asyncio.sleep(self._random.uniform(0.05, 0.3))
            for worker in self._mesh.decodes:
                worker.send_signal(signal.SIGSTOP)
            delays = [self._random.uniform(0.3, 1.1) * STALL_SECONDS for _ in range(size)]
            window = [asyncio.create_task(self._after(delay, tokens=40)) for delay in delays]
            await asyncio.sleep(STALL_SECONDS)
            for worker in self._mesh.decodes:
                worker.send_signal(signal.SIGCONT)
            await asyncio.gather(*window)

    async def at_random(self, count: int, enough: int) -> None:
        """Go on until `count` more cancels have reached a living request. Stages that lack hits come first."""
        left = count

        async def stream() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                if not await self._one(self._choose(enough)):
                    left += 1  # the request ended before its cancel came

        await asyncio.gather(*(stream() for _ in range(STREAMS)))

    def _choose(self, enough: int) -> str:
        hits = self._stages.hits()
        rare = [kind for kind, stages in KINDS.items() if any(hits[stage] < enough for stage in stages)]
        return self._random.choice(rare or list(KINDS))

    async def _one(self, kind: str) -> bool:
        match kind:
            case "early":
                usual = sorted(self._first_token_seconds)[len(self._first_token_seconds) // 2]
                return await self._after(self._random.uniform(0.0, 1.2) * usual)
            case "first":
                return await self._cancel(self._request(), tokens=1)
            case _:
                return await self._cancel(self._request(), tokens=self._random.randint(2, MAX_TOKENS // 2))

    async def _after(self, seconds: float, tokens: int | None = None) -> bool:
        return await self._cancel(self._request(tokens), tokens=MAX_TOKENS + 1, seconds=seconds)

    async def _cancel(self, request: TokenRequest, *, tokens: int, seconds: float | None = None) -> bool:
        """Cancel after this many tokens or seconds; True when the gateway reports that the cancel ended the request."""
        call = self._client.call(request)
        reading = asyncio.create_task(self._read(call, tokens))
        await asyncio.wait((reading,), timeout=seconds)
        call.cancel()
        await reading
        for _ in range(50):  # a call that is cancelled at once may never reach the gateway
            if request.name in self._stages.ends:
                break
            await asyncio.sleep(0.01)
        return self._stages.ends.get(request.name) == CANCELLED

    async def _read(self, call: Call, tokens: int) -> None:
        """Read this many tokens, or all that come before the cancel."""
        loop = asyncio.get_running_loop()
        began, seen = loop.time(), 0
        try:
            async for event in call:
                if event.WhichOneof("event") == "delta":
                    if not seen:
                        self._first_token_seconds.append(loop.time() - began)
                    seen += len(event.delta.token_ids)
                    if seen >= tokens:
                        return
        except asyncio.CancelledError:
            if not call.cancelled():
                raise
        except grpc.aio.AioRpcError as error:
            self.errors.append(f"a client got {error.code().name}: {error.details()}")

    def _request(self, tokens: int | None = None) -> TokenRequest:
        """Half of the long prompts begin like others, so that pages are shared and cached."""
        number = next(self._numbers)
        count = tokens or self._random.randint(20, 480)
        prefix = self._random.choice(self._prefixes) if count > 64 and self._random.random() < 0.5 else b""
        body = prefix + self._random.randbytes(count - len(prefix))
        first = prefix[0] if prefix else number
        seed = self._random.getrandbits(32) if self._random.random() < 0.5 else None
        return TokenRequest(f"cancel-{number}", prompt_of(body, first), MAX_TOKENS, seed)
