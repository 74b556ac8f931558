"""A model for simulations whose tokens depend on every byte of every page they should depend on.

KV of a slot and layer is a mix of the token and of the slot before; a sampled token is a mix over all slots and layers
read back from the pages. A page that is wrong, torn or somebody else's changes the text."""

import asyncio
from collections.abc import Callable

from engine.plan import OnLayers, Piece, Plan, Result, Sampled
from kvtransfer.memory import MemoryPool
from mesh.messages import Sampling

_MASK = (1 << 64) - 1
VOCABULARY = 997


def mix(a: int, b: int) -> int:
    x = (a * 0xBF58476D1CE4E5B9 + b * 0x94D049BB133111EB + 0x9E3779B97F4A7C15) & _MASK
    return (x ^ x >> 31) * 0xD6E8FEB86659FD93 & _MASK


def choose(state: int, sampling: Sampling, position: int) -> int:
    noise = mix(sampling.seed, position * 64 + sampling.choice) if sampling.temperature else 0
    return mix(state, noise) % VOCABULARY


def reference(prompt: tuple[int, ...], sampling: Sampling, layers: int, accent: int = 0) -> list[int]:
    """The text that one process without pages would produce."""
    kv = [0] * layers
    state, text = 0, list[int]()
    for slot, token in enumerate(prompt):
        kv = [mix(kv[layer], mix(token, layer)) for layer in range(layers)]
        for layer in range(layers):
            state = (state + mix(kv[layer], slot)) & _MASK
    while True:
        token = choose(state + accent, sampling, len(text))
        text.append(token)
        if sampling.end(len(text) - 1, token).value != "none":
            return text
        slot = len(prompt) + len(text) - 1
        kv = [mix(kv[layer], mix(token, layer)) for layer in range(layers)]
        for layer in range(layers):
            state = (state + mix(kv[layer], slot)) & _MASK


class SimRunner:
    """Takes virtual time and runs inline; writes layer by layer, so that pages are pushed while it still computes."""

    def __init__(
        self,
        pool: MemoryPool,
        page_tokens: int,
        *,
        step_seconds: float = 0.002,
        row_seconds: float = 0.0002,
        accent: int = 0,  # another numerics class says other things
        on_write: Callable[[int], None] = lambda page: None,  # told of every page before its rows are written
    ) -> None:
        self._on_write = on_write
        self._accent = accent
        self.layers = pool.shape.layers
        self._pool, self._page_tokens = pool, page_tokens
        self._step_seconds, self._row_seconds = step_seconds, row_seconds

    async def run(self, plan: Plan, on_layers: OnLayers | None = None) -> Result:
        for source, target in plan.copies:
            self._pool.view(target, 0, self.layers)[:] = self._pool.view(source, 0, self.layers)
        for piece in plan.pieces:
            for index in range(piece.start // self._page_tokens, (piece.stop - 1) // self._page_tokens + 1):
                self._on_write(piece.pages[index])
        for layer in range(self.layers):
            await asyncio.sleep((self._step_seconds + plan.rows * self._row_seconds) / self.layers)
            for piece in plan.pieces:
                self._write(piece, layer)
            if on_layers is not None:
                on_layers(layer, 1)
        return Result(tuple(self._sample(piece) for piece in plan.pieces))

    def _words(self, piece: Piece, layer: int) -> list[memoryview]:
        return [self._pool.view(page, layer, 1).cast("Q") for page in piece.pages]

    def _write(self, piece: Piece, layer: int) -> None:
        words, size = self._words(piece, layer), self._page_tokens
        before = words[(piece.start - 1) // size][(piece.start - 1) % size] if piece.start else 0
        for slot, token in enumerate(piece.tokens, piece.start):
            before = words[slot // size][slot % size] = mix(before, mix(token, layer))

    def _sample(self, piece: Piece) -> tuple[Sampled, ...]:
        if not piece.sampling:
            return ()
        states, size = [0] * piece.sampled, self._page_tokens
        for layer in range(self.layers):
            words = self._words(piece, layer)
            for slot in range(piece.stop):
                value = mix(words[slot // size][slot % size], slot)
                for row in range(piece.sampled):
                    if slot <= piece.stop - piece.sampled + row:
                        states[row] = (states[row] + value) & _MASK
        return tuple(
            Sampled(choose(state + self._accent, piece.sampling, piece.position + row), 0.0)
            for row, state in enumerate(states)
        )
