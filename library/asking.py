"""Many prompts at one open model: as many at a time as it computes together, answers in the order of the prompts."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, TypeVar

from library.door import ModelDoor, PromptIds
from library.outputs import EmbeddingRequestOutput, RequestOutput
from library.params import SamplingParams

T = TypeVar("T")
Prompt = str | Mapping[str, Any] | Sequence[int]  # text, {"prompt": …}, {"prompt_token_ids": …} or token ids
Message = Mapping[str, Any]
OnDone = Callable[[Any], None]
_PROMPT_FIELDS = ("prompt", "prompt_token_ids")


def many(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several, as a list."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    listed: list[Any] = list(prompts)
    return [listed] if listed and all(isinstance(each, int) for each in listed) else listed


class Asking:
    def __init__(self, door: ModelDoor, at_once: int, seed: int | None = None) -> None:
        self.door = door
        self._at_once = at_once
        self._seed = seed
        self._numbers = count()

    async def ids_of(self, prompt: Prompt) -> PromptIds:
        if isinstance(prompt, str):
            return await self.door.encode(prompt)
        if not isinstance(prompt, Mapping):
            return await self.door.given(prompt)
        for name in prompt:
            if name not in _PROMPT_FIELDS:
                raise ValueError(f"{name} of a prompt is not supported: give {' or '.join(_PROMPT_FIELDS)}")
        if (ids := prompt.get("prompt_token_ids")) is not None:
            return await self.door.given(ids, prompt.get("prompt"))
        if not isinstance(prompt.get("prompt"), str):
            raise ValueError(f"a prompt must have {' or '.join(_PROMPT_FIELDS)}")
        return await self.door.encode(prompt["prompt"])

    def next_id(self) -> str:
        return str(next(self._numbers))

    def seeded(self, params: SamplingParams, request_id: str) -> dict[str, int]:
        """The seed of a request that names none, from that of the model."""
        return {"seed": self._seed + int(request_id)} if self._seed is not None and params.seed is None else {}

    async def generate(
        self,
        prompts: Sequence[Prompt],
        params: Sequence[SamplingParams],
        on_done: OnDone,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        ranks = priority or [0] * len(prompts)
        _same_length("sampling_params", params, prompts)
        _same_length("priority", ranks, prompts)

        async def one(prompt: Prompt, one_params: SamplingParams, rank: int) -> RequestOutput:
            ids, request_id = await self.ids_of(prompt), self.next_id()
            more = self.seeded(one_params, request_id) | ({"priority": rank} if rank else {})
            return await self.door.complete(request_id, ids, one_params, **more)

        return await self._all([partial(one, *each) for each in zip(prompts, params, ranks, strict=True)], on_done)

    async def chat(
        self,
        conversations: Sequence[Sequence[Message]],
        params: Sequence[SamplingParams],
        options: dict[str, Any],
        on_done: OnDone,
    ) -> list[RequestOutput]:
        _same_length("sampling_params", params, conversations)

        async def one(messages: Sequence[Message], one_params: SamplingParams) -> RequestOutput:
            ids, request_id = await self.door.render(messages, options), self.next_id()
            return await self.door.complete(request_id, ids, one_params, **self.seeded(one_params, request_id))

        return await self._all([partial(one, *each) for each in zip(conversations, params, strict=True)], on_done)

    async def embed(
        self, prompts: Sequence[Prompt], dimensions: int | None, on_done: OnDone
    ) -> list[EmbeddingRequestOutput]:
        async def one(prompt: Prompt) -> EmbeddingRequestOutput:
            return await self.door.embed(self.next_id(), await self.ids_of(prompt), dimensions)

        return await self._all([partial(one, each) for each in prompts], on_done)

    async def _all(self, works: Sequence[Callable[[], Awaitable[T]]], on_done: Callable[[T], None]) -> list[T]:
        """The results in their order. The first failure ends all that runs."""
        places = asyncio.Semaphore(self._at_once)

        async def within(work: Callable[[], Awaitable[T]]) -> T:
            async with places:
                result = await work()
            on_done(result)
            return result

        tasks = [asyncio.ensure_future(within(work)) for work in works]
        try:
            return list(await asyncio.gather(*tasks))
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise


def _same_length(name: str, given: Sequence[Any], prompts: Sequence[Any]) -> None:
    if len(given) != len(prompts):
        raise ValueError(f"{name} has {len(given)} entries for {len(prompts)} prompts: give one for each")
