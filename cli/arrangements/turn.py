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
LOOK_SECONDS = 0.02
AGAIN_SECONDS = 0.1  # after which a client whose request failed sends the next one


@dataclass(frozen=True, slots=True)
class ClosedLoad:
    clients: int
    prompt_tokens: int = 256
    answer_tokens: int = 64


@dataclass(frozen=True, slots=True)
class TurnTimes:
    """How long a turn warms up and how long it measures. Both end with an answer, when there were as many as clients or
    a multiple of it, but no later than `longest_seconds`. Clients that began together are in step: their prompts are
    computed, then all decode. So a part of such a round would be no measure of the whole."""

    warm_seconds: float
    seconds: float
    longest_seconds: float


@dataclass(frozen=True, slots=True)
class LoadTurn:
    tokens_per_second: float  # that came during the turn
    streams: Sequence[StreamTimes]  # sent during the turn

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


def any_prompt(load: ClosedLoad, random: Random) -> list[int]:
    return [random.randint(FIRST_ID, LAST_ID) for _ in range(load.prompt_tokens)]


async def run_turn(address: str, load: ClosedLoad, times: TurnTimes, random: Random) -> LoadTurn:
    """Clients send one request after the other until the turn is over; requests that run then get their answers."""
    loop, done, port = asyncio.get_running_loop(), list[StreamTimes](), int(address.rpartition(":")[2])
    over = False

    async def client() -> None:
        while not over:
            done.append(await stream_one(port, any_prompt(load, random), load.answer_tokens))
            if done[-1].problem:
                await asyncio.sleep(AGAIN_SECONDS)

    async def lasts(began: float, seconds: float) -> float:
        before = sum(each.ended <= began for each in done)
        while (passed := loop.time() - began) < times.longest_seconds:
            if passed >= seconds and (rounds := (len(done) - before) // load.clients):
                return done[before + rounds * load.clients - 1].ended
            await asyncio.sleep(LOOK_SECONDS)
        return loop.time()

    clients = [asyncio.create_task(client()) for _ in range(load.clients)]
    try:
        began = await lasts(loop.time(), times.warm_seconds)
        ended = await lasts(began, times.seconds)
        over = True
        await asyncio.gather(*clients)
    finally:
        for each in clients:
            each.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
    tokens = sum(began <= at < ended for each in done for at in each.tokens)
    turn = LoadTurn(tokens / (ended - began), [each for each in done if began <= each.sent < ended])
    if not turn.streams or turn.ttft_p50 == inf:
        raise NoTokens(f"most requests got no token in {ended - began:.1f} s: {'; '.join(turn.problems) or 'too slow'}")
    return turn


def quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0
