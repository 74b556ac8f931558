"""A turn of load measures a steady state: it waits for first answers, and counts what comes after them."""

import asyncio
from random import Random

import pytest

from cli.arrangements.turn import ClosedLoad, LoadTurn, NoTokens, TurnTimes, run_turn

EVENT = b'14\r\ndata: {"text": "x"}\n\n\r\n'
END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


async def turn_of(
    gap: float, times: TurnTimes, *, clients: int = 2, first: float = 0.0, status: bytes = b"200 OK"
) -> tuple[LoadTurn, int]:
    """A turn at a server that sends four tokens with such gaps, and the number of requests that it got."""
    asked = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 " + status + b"\r\n\r\n")
        if status.startswith(b"200"):
            await asyncio.sleep(first)
            for _ in range(4):
                await asyncio.sleep(gap)
                writer.write(EVENT)
            writer.write(END)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        host, port = server.sockets[0].getsockname()
        return await run_turn(f"{host}:{port}", ClosedLoad(clients, 4, 4), times, Random(1)), asked
    finally:
        server.close()


async def test_a_turn_waits_until_each_client_has_an_answer_and_counts_only_what_comes_then() -> None:
    turn, asked = await turn_of(0.05, TurnTimes(warm_seconds=0.0, seconds=0.0, longest_seconds=5.0))
    assert asked >= 6, "the answers of the warm-up, those of the turn, and those that were sent during it"
    assert 2 <= len(turn.streams) < asked
    assert 25 < turn.tokens_per_second < 45


async def test_a_turn_ends_with_a_whole_round_of_answers() -> None:
    """Both clients wait 0.3 s for their prompts and then get all tokens: 8 tokens in every 0.3 s and a little."""
    times = TurnTimes(warm_seconds=0.0, seconds=0.45, longest_seconds=5.0)  # one and a half rounds
    turn, _ = await turn_of(0.001, times, first=0.3)
    assert 20 < turn.tokens_per_second < 26.7, "in 0.45 s, 8 tokens came or 16: 18 or 36 per second"


async def test_a_server_without_answers_is_left_after_the_longest_time() -> None:
    with pytest.raises(NoTokens, match="503"):
        await turn_of(0.0, TurnTimes(0.0, 0.3, 0.3), status=b"503 Service Unavailable")
