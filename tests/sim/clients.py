"""Clients of a simulated mesh: what each saw, and what is wrong with it beside the reference text."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field

from gateway.core.interface import ChoiceRequest, TokenStream
from mesh.errors import BatonError, Cancelled
from mesh.messages.jobs import Sampling
from tests.sim.model import reference
from tests.sim.workers import SHAPE

Bans = Callable[[Sampling, list[int]], Collection[int]]  # what a grammar forbids behind a text


@dataclass
class SimClient:
    """One request and what its client saw."""

    spec: ChoiceRequest
    handle: TokenStream
    seen: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    error: BatonError | None = None
    ended: bool = False
    may_fail: bool = False
    task: asyncio.Task[None] | None = None
    reads: Callable[[], Awaitable[None]] | None = None

    async def listen(self) -> None:
        """Take tokens until the stream ends."""
        try:
            async for token in self.handle.events():
                self.positions.append(token.position)
                self.seen.append(token.token)
                if self.reads is not None:
                    await self.reads()
        except BatonError as error:
            self.error = error
            self.spec.trace.fails(error)
        self.spec.trace.ends(cancelled=isinstance(self.error, Cancelled))
        self.ended = True

    def violations(self, vocabulary: int, bans: Bans, window: int = 0, full_layers: int = 0) -> list[str]:
        found, had, spec, name = list[str](), list(self.spec.emitted), self.spec, self.spec.request_id
        given = spec.prompt, spec.sampling, SHAPE.layers
        texts = [reference(*given, accent, vocabulary, bans, window, full_layers) for accent in (0, 1)]
        texts = [text[len(had) :] for text in texts if text[: len(had)] == had]
        expected = next((text for text in texts if text[: len(self.seen)] == self.seen), texts[0])
        if not self.ended:
            found.append(f"{name} never ends ({len(self.seen)} of {len(expected)} tokens)")
        elif self.error is None and self.seen != expected:
            found.append(f"{name} differs: {self.seen} is not {expected}")
        elif self.seen != expected[: len(self.seen)]:
            found.append(f"{name} differs before its error: {self.seen} is not the beginning of {expected}")
        if self.error is not None and not isinstance(self.error, Cancelled) and not self.may_fail:
            found.append(f"{name} ends with {self.error!r}")
        if self.positions != list(range(len(had), len(had) + len(self.positions))):
            found.append(f"{name} positions {self.positions}")
        return found
