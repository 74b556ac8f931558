"""The HTTP client against strange servers: every answer becomes a record, and every failure has a kind and a reason."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from cli.connecting.http_url import parse_url
from cli.load.event_stream import EVENT_BYTES, EventParser, EventTooLong
from cli.load.record import MeasuredRequest
from cli.load.target import LoadTarget
from mesh.config.config_checks import ConfigError
from tests.sim.loop import run_virtual
from tests.unit.cli.load.fake_server import (
    DONE,
    END,
    STREAM,
    Answers,
    FakeConnection,
    FakeRequest,
    Hangup,
    chunked,
    event,
    target,
    text_event,
    whole,
)

GOOD = [STREAM, chunked(text_event()), chunked(text_event(finish="stop")), END]
UNTIL_CLOSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n\r\n"


def script(pieces: list[bytes], *, hang_up: bool = False, pause: float = 0.0) -> Answers:
    async def answers(request: FakeRequest) -> AsyncIterator[bytes]:
        for piece in pieces:
            await asyncio.sleep(pause)
            yield piece
        if hang_up:
            raise Hangup

    return answers


async def one(sender: LoadTarget) -> MeasuredRequest:
    now = asyncio.get_running_loop().time()
    record = MeasuredRequest(0, now, now, 1, 2)
    await sender.perform("/completions", b"{}", record)
    return record


def ask(pieces: list[bytes], *, hang_up: bool = False, pause: float = 0.0) -> MeasuredRequest:
    async def main() -> MeasuredRequest:
        return await one(target(script(pieces, hang_up=hang_up, pause=pause), timeout_seconds=30.0))

    return run_virtual(main())


def test_an_answer_is_understood_wherever_its_bytes_are_cut() -> None:
    data = b"".join(GOOD)
    for size in (1, 2, 3, 7, 64, len(data)):
        record = ask([data[at : at + size] for at in range(0, len(data), size)])
        assert (record.error, len(record.chunks), record.finish is not None) == ("", 2, True)


def test_a_body_ends_at_its_length_or_at_the_end_of_the_connection() -> None:
    body = text_event() + text_event(finish="stop") + DONE
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(body)
    assert ask([head, body]).finished
    assert ask([UNTIL_CLOSE, body], hang_up=True).finished
    assert ask([UNTIL_CLOSE.replace(b"\r\n", b"\n"), body], hang_up=True).finished


def test_a_server_that_keeps_the_body_open_after_its_last_event_costs_no_latency() -> None:
    record = ask([UNTIL_CLOSE, text_event(finish="stop") + DONE])
    assert record.finished and record.e2e == 0.0


def test_an_interim_answer_and_trailers_are_skipped() -> None:
    trailers = chunked(DONE) + b"0\r\nx-cost: 1\r\n\r\n"
    assert ask([b"HTTP/1.1 100 Continue\r\n\r\n", *GOOD[:-1], trailers]).finished


def test_a_huge_chunk_is_read_in_parts() -> None:
    assert ask([STREAM, chunked(text_event("y" * 3_000_000) + text_event(finish="stop")), END]).finished


BAD = event({"error": {"message": "out\x1b[31m of pages"}})


@pytest.mark.parametrize(
    ("pieces", "hang_up", "kind", "detail"),
    [
        ([], True, "connection lost", "without an answer"),
        ([STREAM[:30]], True, "connection lost", "inside an answer"),
        (GOOD[:2], True, "connection lost", "inside an answer"),
        ([STREAM, chunked(text_event())[:-9]], True, "connection lost", "inside an answer"),
        ([STREAM, chunked(text_event()), b"0\r\n\r\n"], False, "cut off", "without a finish reason"),
        ([STREAM, END], False, "empty answer", "neither text"),
        ([STREAM, b"0\r\n\r\n"], False, "empty answer", "neither text"),
        ([STREAM, chunked(text_event()), chunked(BAD), END], False, "error in stream", "out [31m of pages"),
        ([STREAM, chunked(b"data: {oops\n\n"), END], False, "broken answer", "{oops"),
        ([STREAM, chunked(b"data: [1]\n\n"), END], False, "broken answer", "no JSON object"),
        ([STREAM, chunked(b"data: " + b"[" * 100_000 + b"\n\n"), END], False, "broken answer", "no JSON object"),
        ([STREAM, b"zz\r\n"], False, "broken HTTP", "b'zz' is no length"),
        ([STREAM, b"-5\r\n"], False, "broken HTTP", "b'-5' is no length"),
        ([STREAM, b"3\r\nabcdef\r\n"], False, "broken HTTP", "longer than its size"),
        ([STREAM[:-2] + b"content-encoding: gzip\r\n\r\n", b"2\r\n\x1f\x8b\r\n"], False, "broken HTTP", "gzip"),
        ([b"SSH-2.0-OpenSSH_9\r\n"], False, "broken HTTP", "SSH-2.0"),
        ([b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 300], False, "broken HTTP", "header lines"),
        ([b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000], False, "broken HTTP", "too long"),
        ([b"y" * 200_000], False, "broken HTTP", "too long"),
        ([whole(200, {"choices": []})], False, "no stream", "application/json"),
        ([whole(500, {"error": {"message": "boom"}})], False, "HTTP 500", "boom"),
        ([whole(429, {"error": "slow down"})], False, "HTTP 429", "slow down"),
        ([whole(400, {"object": "error", "message": "no"})], False, "HTTP 400", "no"),
        ([whole(422, {"detail": [{"loc": ["body"]}]})], False, "HTTP 422", "loc"),
        ([whole(503, [])], False, "HTTP 503", ""),
        ([b"HTTP/1.1 307 X\r\nlocation: http://b/v1\r\ncontent-length: 0\r\n\r\n"], False, "HTTP 307", "http://b/v1"),
        ([STREAM, chunked(text_event())], False, "timeout", "no whole answer after 30 s"),
    ],
)
def test_every_failure_has_a_kind_and_a_reason(pieces: list[bytes], hang_up: bool, kind: str, detail: str) -> None:
    record = ask(pieces, hang_up=hang_up)
    assert record.error == kind and detail in record.detail and record.ended is not None


def test_a_server_that_sends_a_byte_now_and_then_runs_into_the_time_limit() -> None:
    record = ask([bytes([byte]) for byte in b"".join(GOOD)], pause=1.0)
    assert record.error == "timeout" and record.e2e == pytest.approx(30.0)


def test_strange_but_whole_events_are_tolerated() -> None:
    pieces = [
        b": keep-alive\n\nevent: message\nid: 1\n",
        text_event(),
        event({"choices": None, "usage": None}),
        event({"choices": [None, {"delta": None, "text": None}], "usage": {"completion_tokens": "4"}}),
        event({"choices": [{"delta": {"role": "assistant", "content": ""}}]}),
        event({"choices": [{"delta": {"reasoning_content": "hm"}, "finish_reason": "stop"}]}),
        DONE,
    ]
    record = ask([STREAM, *(chunked(piece) for piece in pieces), b"0\r\n\r\n"])
    assert (record.error, len(record.chunks), record.completion_tokens) == ("", 2, None)


def test_a_connection_is_reused_after_a_whole_answer_only() -> None:
    async def main(pieces: list[bytes]) -> int:
        opened: list[FakeConnection] = []
        sender = target(script(pieces), timeout_seconds=1.0, opened=opened)
        for _ in range(3):
            await one(sender)
        assert [each.closed for each in opened[:-1]] == [True] * (len(opened) - 1)
        return len(opened)

    assert run_virtual(main(GOOD)) == 1
    assert run_virtual(main(GOOD[:2])) == 3
    assert run_virtual(main([whole(500, {}, "connection: close")])) == 3


def test_a_request_on_a_connection_that_the_server_has_just_closed_is_sent_again() -> None:
    async def main() -> tuple[MeasuredRequest, MeasuredRequest, int]:
        opened: list[FakeConnection] = []
        served = 0

        async def answers(request: FakeRequest) -> AsyncIterator[bytes]:
            nonlocal served
            served += 1
            if served == 2:
                raise Hangup
            for piece in GOOD:
                yield piece

        sender = target(answers, opened=opened)
        return await one(sender), await one(sender), len(opened)

    first, second, connections = run_virtual(main())
    assert first.finished and second.finished and connections == 2


# ---- server-sent events


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_events_are_the_same_wherever_the_pieces_are_cut(end: bytes) -> None:
    data = end.join([b"data: one", b"", b": comment", b"data:two", b"data: lines", b"", b"retry: 5", b"", b"data: x"])
    for cut in range(len(data)):
        parser = EventParser()
        assert parser.feed(data[:cut]) + parser.feed(data[cut:]) == [b"one", b"two\nlines"]


def test_an_event_that_never_ends_is_refused() -> None:
    parser = EventParser()
    with pytest.raises(EventTooLong):
        for _ in range(2 + EVENT_BYTES // (1 << 20)):
            parser.feed(b"x" * (1 << 20))


# ---- URLs


@pytest.mark.parametrize(
    ("text", "url", "authority"),
    [
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000/v1", "127.0.0.1:8000"),
        ("http://localhost:8000", "http://localhost:8000/v1", "localhost:8000"),
        ("https://[::1]:8443/v1/", "https://[::1]:8443/v1", "[::1]:8443"),
        ("https://example.org/openai/v1", "https://example.org:443/openai/v1", "example.org:443"),
    ],
)
def test_urls_are_read(text: str, url: str, authority: str) -> None:
    assert str(parse_url(text)) == url and parse_url(text).authority == authority


@pytest.mark.parametrize(
    "text",
    ["", "localhost:8000", "ftp://a/v1", "http://", "http://a:x/v1", "http://a:99999/v1", "http://[::1/v1", "http://a/v1?k=1",
     "http://me:secret@a/v1", "http://a/v 1", "http://a/v1#top"],
)  # fmt: skip
def test_other_urls_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--url"):
        parse_url(text)
