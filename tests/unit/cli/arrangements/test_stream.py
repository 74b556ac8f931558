"""Streams of a turn of load: one time for each token, and what counts where an answer has none."""

import asyncio
from math import inf

from cli.arrangements.stream import EventTimes, StreamTimes
from cli.arrangements.turn import LoadTurn

BROKEN = StreamTimes(10.0, (), "it broke")


def test_streams_that_get_no_token_make_the_time_to_the_first_token_no_shorter() -> None:
    slow, fast = (StreamTimes(10.0, (10.0 + seconds,)) for seconds in (3.0, 1.0))
    assert LoadTurn(1.0, [fast, fast, slow]).ttft_p50 == 1.0
    assert LoadTurn(1.0, [fast, slow, BROKEN]).ttft_p50 == 3.0
    assert LoadTurn(1.0, [fast, BROKEN, BROKEN]).ttft_p50 == inf


async def test_a_client_notes_one_time_for_each_token_however_its_bytes_are_cut() -> None:
    one, event = EventTimes(), b'14\r\ndata: {"text": "x"}\n\n\r\n'
    text = b"HTTP/1.1 200 OK\r\n\r\n" + 3 * event + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
    for at in range(0, len(text), 7):
        one.data_received(text[at : at + 7])
        await asyncio.sleep(0)
    assert len(one.times) == 3 and one.over.is_set() and not one.problem


async def test_a_sign_that_the_stream_lives_is_no_token() -> None:
    one, alive = EventTimes(), b"e\r\n: keep-alive\n\n\r\n"
    one.data_received(b"HTTP/1.1 200 OK\r\n\r\n" + alive)
    assert one.times == []
    one.data_received(alive + b'14\r\ndata: {"text": "x"}\n\n\r\n' + alive)
    assert len(one.times) == 1


async def test_a_client_that_gets_no_answer_says_so() -> None:
    one = EventTimes()
    one.data_received(b"HTTP/1.1 429 Too Many Requests\r\n\r\n")
    one.connection_lost(None)
    assert one.over.is_set() and "429" in one.problem
