"""Makes prompts of given lengths in tokens, where equal blocks (shared prefixes of a trace) become equal tokens.

A prompt is made of units: token ids, or words whose cost in tokens the server has told (cli/load/calibration.py).
Everything else of a prompt is drawn from the seed and the request's number, so no other request shares it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Protocol

from cli.load.plan import BLOCK_TOKENS, LoadRequest

CACHED_BLOCKS = 8192


class PromptMaker(Protocol):
    def prompt(self, number: int, request: LoadRequest) -> bytes:
        """The prompt as JSON."""
        ...


class TokenPrompts:
    """Prompts as lists of token ids: exact with every tokenizer."""

    def __init__(self, ids: Sequence[int], seed: int) -> None:
        assert ids
        self._words = [str(ids[byte % len(ids)]).encode() for byte in range(256)]
        self._seed = seed
        self._block = lru_cache(CACHED_BLOCKS)(self._draw)

    def prompt(self, number: int, request: LoadRequest) -> bytes:
        words = list[bytes]()
        for block in request.blocks:
            words += self._block(f"block {block}", BLOCK_TOKENS)
            if len(words) >= request.input_tokens:
                break
        words = words[: request.input_tokens]
        words += self._draw(f"request {number}", request.input_tokens - len(words))
        return b"[" + b",".join(words) + b"]"

    def _draw(self, name: str, count: int) -> list[bytes]:
        return list(map(self._words.__getitem__, Random(f"{self._seed} {name}").randbytes(count)))


@dataclass(frozen=True, slots=True)
class TextUnit:
    text: str
    tokens: int


class WordPrompts:
    """Prompts as text made of words of known cost; exact where the server has a word of one token."""

    def __init__(self, units: Sequence[TextUnit], overhead_tokens: int, seed: int) -> None:
        """`overhead_tokens`: what the server adds to every prompt, such as its chat template."""
        assert units
        self._units, self._overhead, self._seed = tuple(units), overhead_tokens, seed
        self._cheapest = min(units, key=lambda unit: unit.tokens)
        self._block = lru_cache(CACHED_BLOCKS)(self._draw)

    def prompt(self, number: int, request: LoadRequest) -> bytes:
        return json.dumps("".join(unit.text for unit in self.units(number, request))).encode()

    def units(self, number: int, request: LoadRequest) -> list[TextUnit]:
        room = max(self._cheapest.tokens, request.input_tokens - self._overhead)
        chosen = list[TextUnit]()
        for block in request.blocks:
            for unit in self._block(f"block {block}", BLOCK_TOKENS):
                if unit.tokens > room:
                    break
                chosen.append(unit)
                room -= unit.tokens
        return [*chosen, *self._draw(f"request {number}", room)]

    def _draw(self, name: str, tokens: int) -> list[TextUnit]:
        """Units that cost `tokens`, or the most below that is possible."""
        random, chosen = Random(f"{self._seed} {name}"), list[TextUnit]()
        while tokens >= self._cheapest.tokens:
            unit = random.choice(self._units)
            unit = unit if unit.tokens <= tokens else self._cheapest
            chosen.append(unit)
            tokens -= unit.tokens
        return chosen
