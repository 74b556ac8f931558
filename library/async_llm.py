"""`AsyncLLM`: the calls of `LLM` for programs with event loops, and answers that grow as they are read."""

import asyncio
import threading
import weakref
from collections.abc import AsyncIterator, Coroutine, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, TypeVar

from library.adapters import LoRARequest, adapter_of
from library.asking import Asking
from library.llm import close_thread
from library.loop_thread import CLOSED, LoopThread
from library.opened import ModelOrder, Workers, opened
from library.outputs import EmbeddingRequestOutput, RequestOutput
from library.params import SamplingParams, whole_number
from library.prompts import Message, Prompt, given_prompt, many_chats

T = TypeVar("T")
_READ_AHEAD = 64  # outputs that wait for a reader who is behind


class AsyncLLM:
    """Arguments are those of `LLM`. The model is opened by `async with`, or when somebody first asks it, from any
    event loop and any thread."""

    def __init__(
        self, model: str | None = None, *, workers: Workers | None = None, seed: int | None = None, **settings: Any
    ) -> None:
        self._order = ModelOrder.of(model, workers, settings)
        self._seed = None if seed is None else whole_number("seed", seed)
        self._lock = threading.Lock()
        self._thread: LoopThread | None = None
        self._closes: Any = None  # ends the thread, once there is one
        self._opening: Future[Asking] | None = None
        self._closed = False

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        lora_request: LoRARequest | None = None,
    ) -> AsyncIterator[RequestOutput]:
        """The answer as it grows: each output holds everything so far. Leaving the loop early cancels the request."""
        given, params, adapter = given_prompt("prompt", prompt), _params(sampling_params), adapter_of(lora_request)
        asking = await self._opened()
        queue: asyncio.Queue[RequestOutput | BaseException | None] = asyncio.Queue(_READ_AHEAD)
        here = asyncio.get_running_loop()

        def put(item: RequestOutput | BaseException | None) -> Any:
            return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(queue.put(item), here))

        async def read() -> None:
            number = asking.next_id()
            try:
                more = await asking.adapters.body(adapter)
                prompt_read = await asking.door.read(given, cut=params.truncate_prompt_tokens is not None)
                async for output in asking.door.stream(request_id or number, prompt_read, params, **more):
                    await put(output)
            except asyncio.CancelledError:
                here.call_soon_threadsafe(queue.put_nowait, RuntimeError(CLOSED))
                raise
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
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        lora_request: LoRARequest | None = None,
        **options: Any,
    ) -> RequestOutput:
        """The whole answer to one conversation; `options` are those of `LLM.chat`."""
        (conversation,), params, adapter = many_chats(messages), _params(sampling_params), adapter_of(lora_request)
        asking = await self._opened()
        return (await self._run(asking.chat([conversation], [params], options, _ignore, [adapter])))[0]

    async def embed(
        self, prompt: Prompt, *, dimensions: int | None = None, lora_request: LoRARequest | None = None
    ) -> EmbeddingRequestOutput:
        given, adapter = given_prompt("prompt", prompt), adapter_of(lora_request)
        asking = await self._opened()
        return (await self._run(asking.embed([given], dimensions, _ignore, [adapter])))[0]

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        """Load an adapter before it is first asked for."""
        adapter = adapter_of(lora_request)
        if adapter is None or not adapter.lora_path:
            raise ValueError("lora_request: name an adapter with its folder, lora_path")
        asking = await self._opened()
        await self._run(asking.adapters.name(adapter))
        return True

    async def aclose(self) -> None:
        """End what was opened; those who wait for it get a RuntimeError. Idempotent."""
        with self._lock:
            self._closed = True
            closes = self._closes
        if closes is not None:
            await asyncio.to_thread(closes)

    async def __aenter__(self) -> "AsyncLLM":
        await self._opened()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __reduce__(self) -> Any:
        raise TypeError("a model that is open cannot be copied or sent to another process: open it there")

    async def _opened(self) -> Asking:
        """The open model: the first who asks opens it, and the others wait."""
        with self._lock:
            if self._closed:
                raise RuntimeError(CLOSED)
            if self._opening is None:
                self._thread = LoopThread()
                self._closes = weakref.finalize(self, close_thread, self._thread)
                self._opening = self._thread.submit(_open(self._thread, self._order, self._seed))
            opening = self._opening
        try:
            return await asyncio.shield(asyncio.wrap_future(opening))
        except asyncio.CancelledError:
            if opening.cancelled():
                raise RuntimeError(CLOSED) from None
            raise
        except Exception:
            await self.aclose()
            raise

    def _submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        assert self._thread is not None, "the model is open"
        return self._thread.submit(work)

    async def _run(self, work: Coroutine[Any, Any, T]) -> T:
        future = self._submit(work)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if self._closed and future.cancelled():
                raise RuntimeError(CLOSED) from None
            raise


async def _open(thread: LoopThread, order: ModelOrder, seed: int | None) -> Asking:
    found = await thread.stack.enter_async_context(opened(order))
    return Asking(found.door, found.at_once, seed)


def _params(params: SamplingParams | None) -> SamplingParams:
    if not isinstance(params, SamplingParams | None):
        raise TypeError(f"sampling_params must be SamplingParams, not {params!r}")
    return params or SamplingParams()


def _ignore(_output: object) -> None:
    pass
