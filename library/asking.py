"""Many prompts at one open model: as many at a time as it computes together, answers in the order of the prompts."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import count
from typing import Any, TypeVar

from library.adapters import LoadedAdapters, LoRARequest
from library.beams import BeamSearchParams
from library.door import ModelDoor, RequestRefused
from library.outputs import EmbeddingRequestOutput, RequestOutput
from library.params import SamplingParams
from library.prompts import GivenPrompt, Message

T = TypeVar("T")
OnDone = Callable[[Any], None]
Adapters = Sequence[LoRARequest | None]  # one for each prompt; empty: there are none
Body = dict[str, Any]


class Asking:
    def __init__(self, door: ModelDoor, at_once: int, seed: int | None = None) -> None:
        self.door = door
        self._at_once = at_once
        self._seed = seed
        self._numbers = count()
        self.adapters = LoadedAdapters(door.load_adapter)

    def next_id(self) -> str:
        return str(next(self._numbers))

    def seeded(self, params: SamplingParams, request_id: str) -> dict[str, int]:
        """The seed of a request that names none, from that of the model."""
        return {"seed": self._seed + int(request_id)} if self._seed is not None and params.seed is None else {}

    async def generate(
        self,
        prompts: Sequence[GivenPrompt],
        params: Sequence[SamplingParams],
        on_done: OnDone,
        priority: Sequence[int] | None = None,
        adapters: Adapters = (),
    ) -> list[RequestOutput]:
        bodies = await self._bodies(adapters, len(prompts))

        async def one(prompt: GivenPrompt, one_params: SamplingParams, rank: int, model: Body) -> RequestOutput:
            cut = one_params.truncate_prompt_tokens is not None
            read, request_id = await self.door.read(prompt, cut=cut), self.next_id()
            more = self.seeded(one_params, request_id) | ({"priority": rank} if rank else {}) | model
            return await self.door.complete(request_id, read, one_params, **more)

        ranks = priority or [0] * len(prompts)
        asked = zip(prompts, params, ranks, bodies, strict=True)
        return await self._all([partial(one, *each) for each in asked], on_done)

    async def beam_search(
        self,
        prompts: Sequence[GivenPrompt],
        params: BeamSearchParams,
        on_done: OnDone,
        adapters: Adapters = (),
    ) -> list[RequestOutput]:
        async def one(prompt: GivenPrompt, model: Body) -> RequestOutput:
            read = await self.door.read(prompt)
            return await self.door.complete(self.next_id(), read, params.sampling(), **params.more(), **model)

        bodies = await self._bodies(adapters, len(prompts))
        return await self._all([partial(one, *each) for each in zip(prompts, bodies, strict=True)], on_done)

    async def chat(
        self,
        conversations: Sequence[Sequence[Message]],
        params: Sequence[SamplingParams],
        options: dict[str, Any],
        on_done: OnDone,
        adapters: Adapters = (),
    ) -> list[RequestOutput]:
        bodies = await self._bodies(adapters, len(conversations))

        async def one(messages: Sequence[Message], one_params: SamplingParams, model: Body) -> RequestOutput:
            read, request_id = await self.door.render(messages, options), self.next_id()
            more = self.seeded(one_params, request_id) | model
            return await self.door.complete(request_id, read, one_params, **more)

        asked = zip(conversations, params, bodies, strict=True)
        return await self._all([partial(one, *each) for each in asked], on_done)

    async def embed(
        self,
        prompts: Sequence[GivenPrompt],
        dimensions: int | None,
        on_done: OnDone,
        adapters: Adapters = (),
    ) -> list[EmbeddingRequestOutput]:
        more = {} if dimensions is None else {"dimensions": dimensions}

        async def one(prompt: GivenPrompt, model: Body) -> EmbeddingRequestOutput:
            return await self.door.embed(self.next_id(), await self.door.read(prompt), **more, **model)

        bodies = await self._bodies(adapters, len(prompts))
        return await self._all([partial(one, *each) for each in zip(prompts, bodies, strict=True)], on_done)

    async def _bodies(self, adapters: Adapters, count: int) -> list[Body]:
        """The fields of requests with these adapters, each loaded before; of the model alone where there are none."""
        return [await self.adapters.body(each) for each in adapters or [None] * count]

    async def _all(self, works: Sequence[Callable[[], Awaitable[T]]], on_done: Callable[[T], None]) -> list[T]:
        """The results in their order. The first failure ends all that runs; it says which prompt it was."""
        places = asyncio.Semaphore(self._at_once)

        async def within(number: int, work: Callable[[], Awaitable[T]]) -> T:
            async with places:
                try:
                    result = await work()
                except RequestRefused as error:
                    raise RequestRefused(f"prompt {number}: {error}" if len(works) > 1 else str(error)) from None
            on_done(result)
            return result

        tasks = [asyncio.ensure_future(within(number, work)) for number, work in enumerate(works)]
        try:
            return list(await asyncio.gather(*tasks))
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
