"""One turn of a mesh under load: so many clients, each with one request at a time, and what they saw."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from random import Random
from typing import Any

from cli.arrangements.stream import StreamTimes, stream_one

FIRST_ID, LAST_ID = 32, 126  # token ids of prompts, which every vocabulary has
AGAIN_SECONDS = 0.1  # after which a client whose request failed sends the next one


@dataclass(frozen=True, slots=True)
class ClosedLoad:
    clients: int
    prompt_tokens: int = 256
    answer_tokens: int = 64


@dataclass(frozen=True, slots=True)
class LoadTurn:
    tokens_per_second: float
    streams: Sequence[StreamTimes]

    @property
    def ttft_p50(self) -> float:
        """A stream that got no token waited for ever; infinite where most got none."""
        return quantile(sorted(each.tokens[0] - each.sent if each.tokens else inf for each in self.streams), 0.5)

    @property
    def itl_p99_ms(self) -> float:
        return quantile(sorted(1000 * (b - a) for each in self.streams for a, b in pairwise(each.tokens)), 0.99)

    @property
    def problems(self) -> list[str]:
        return sorted({each.problem for each in self.streams if each.problem})[:5]

    def facts(self) -> dict[str, Any]:
        return {
            "tokens_per_second": self.tokens_per_second,
            "ttft_p50": self.ttft_p50,
            "itl_p99_ms": self.itl_p99_ms,
            "requests": len(self.streams),
            "without_a_token": sum(not each.tokens for each in self.streams),
            "problems": self.problems,
        }


class NoTokens(Exception):
    """Most requests of a turn got no token; the message says what the clients saw."""


async def run_turn(address: str, load: ClosedLoad, seconds: float, random: Random) -> LoadTurn:
    """Requests begin for so long; tokens that come in this time count, and the times of all."""
    loop, done = asyncio.get_running_loop(), list[StreamTimes]()
    began, port = loop.time(), int(address.rpartition(":")[2])

    async def client() -> None:
        while loop.time() - began < seconds:
            prompt = [random.randint(FIRST_ID, LAST_ID) for _ in range(load.prompt_tokens)]
            done.append(await stream_one(port, prompt, load.answer_tokens))
            if done[-1].problem:
                await asyncio.sleep(AGAIN_SECONDS)

    await asyncio.gather(*(client() for _ in range(load.clients)))
    turn = LoadTurn(sum(at - began <= seconds for each in done for at in each.tokens) / seconds, done)
    if not done or turn.ttft_p50 == inf:
        raise NoTokens(f"most requests got no token in {seconds:g} s: {'; '.join(turn.problems)}")
    return turn


def quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0
