"""`AsyncLLM`: the calls of `LLM` for programs with an event loop, and answers that grow as they are read."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, TypeVar

from library.asking import Asking, Message, Prompt
from library.loop_thread import LoopThread
from library.opened import Workers, opened
from library.outputs import EmbeddingRequestOutput, RequestOutput
from library.params import SamplingParams

T = TypeVar("T")
_READ_AHEAD = 64  # outputs that wait for a reader who is behind


class AsyncLLM:
    """Arguments are those of `LLM`. The model is opened by `async with`, or when somebody first asks it."""

    def __init__(
        self, model: str | None = None, *, workers: Workers | None = None, seed: int | None = None, **settings: Any
    ) -> None:
        self._what = model, workers, settings
        self._seed = seed
        self._thread: LoopThread | None = None
        self._stack = AsyncExitStack()
        self._asking: Asking | None = None
        self._opening = asyncio.Lock()

    async def generate(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None, request_id: str | None = None
    ) -> AsyncIterator[RequestOutput]:
        """The answer as it grows: each output holds everything so far. Leaving the loop early cancels the request."""
        asking, params = await self._opened(), sampling_params or SamplingParams()
        number = asking.next_id()
        queue: asyncio.Queue[RequestOutput | BaseException | None] = asyncio.Queue(_READ_AHEAD)
        here = asyncio.get_running_loop()

        def put(item: RequestOutput | BaseException | None) -> Any:
            return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(queue.put(item), here))

        async def read() -> None:
            try:
                ids = await asking.ids_of(prompt)
                async for output in asking.door.stream(request_id or number, ids, params):
                    await put(output)
            except Exception as error:
                await put(error)
            else:
                await put(None)

        reading = self._submit(read())
        try:
            while (item := await queue.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            reading.cancel()

    async def chat(
        self, messages: Sequence[Message], sampling_params: SamplingParams | None = None, **options: Any
    ) -> RequestOutput:
        asking, params = await self._opened(), sampling_params or SamplingParams()
        found = await self._run(asking.chat([messages], [params], options, _ignore))
        return found[0]

    async def embed(self, prompt: Prompt, *, dimensions: int | None = None) -> EmbeddingRequestOutput:
        asking = await self._opened()
        return (await self._run(asking.embed([prompt], dimensions, _ignore)))[0]

    async def aclose(self) -> None:
        """End what was opened. Idempotent."""
        thread, self._thread, self._asking = self._thread, None, None
        if thread is not None:
            await asyncio.wrap_future(thread.submit(self._stack.aclose()))
            await asyncio.to_thread(thread.close)

    async def __aenter__(self) -> "AsyncLLM":
        await self._opened()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _opened(self) -> Asking:
        async with self._opening:
            if self._asking is None:
                self._thread = LoopThread()
                model, workers, settings = self._what
                try:
                    found = await self._run(self._stack.enter_async_context(opened(model, workers, settings)))
                except BaseException:
                    await self.aclose()
                    raise
                self._asking = Asking(found.door, found.at_once, self._seed)
            return self._asking

    def _submit(self, work: Coroutine[Any, Any, T]) -> Any:
        assert self._thread is not None, "the model is open"
        return self._thread.submit(work)

    async def _run(self, work: Coroutine[Any, Any, T]) -> T:
        found: T = await asyncio.wrap_future(self._submit(work))
        return found


def _ignore(_output: object) -> None:
    pass
