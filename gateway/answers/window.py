"""The choices of one request, a limited number of them in flight.

A request may hold thousands of prompts. They are submitted in order, so that neither the gateway's loop nor a worker's
queue belongs to one client."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

from gateway.core.interface import ChoiceRequest
from mesh.errors import Cancelled

WINDOW = 64  # choices of one request in flight


class Cancellable(Protocol):
    def cancel(self) -> None: ...


Stream = TypeVar("Stream", bound=Cancellable)
Result = TypeVar("Result")


class ChoiceWindow(Generic[Stream]):
    def __init__(self, choices: Sequence[ChoiceRequest], submit: Callable[[ChoiceRequest], Stream]) -> None:
        self._choices, self._submit = choices, submit
        self._running: deque[tuple[ChoiceRequest, Stream]] = deque()
        self._cancelled = False

    @property
    def prompt_tokens(self) -> int:
        return sum(len(choice.prompt) for choice in self._choices)

    async def results(self, read: Callable[[ChoiceRequest, Stream], Awaitable[Result]]) -> list[Result]:
        """The results that `read` makes of each choice, in order. Raises mesh.errors only."""
        found = list[Result]()
        try:
            for choice in self._choices:
                if len(self._running) == WINDOW:
                    found.append(await self._next(read))
                if self._cancelled:
                    raise Cancelled("the client went away")
                self._running.append((choice, self._submit(choice)))
                await asyncio.sleep(0)  # other requests have their turn between two submissions
            while self._running:
                found.append(await self._next(read))
            return found
        finally:
            self.cancel()

    async def _next(self, read: Callable[[ChoiceRequest, Stream], Awaitable[Result]]) -> Result:
        result = await read(*self._running[0])
        self._running.popleft()
        return result

    def cancel(self) -> None:
        self._cancelled = True
        for _, stream in self._running:
            stream.cancel()
