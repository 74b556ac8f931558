"""Requests that are meant to jam the gateway: each is refused with its status, and none blocks the event loop."""

import gzip
import json
from collections.abc import Callable
from typing import Any

import pytest

from gateway.dialects.openai import large
from gateway.http.request_reader import MAX_HEADERS
from gateway.structured import schema
from tests.harness.blocks import MOST_SECONDS, exchange, http, status_of, watching
from tests.unit.gateway.hostile import CHAT, TEXT, served, set_limits


async def test_choices_times_prompts_have_a_limit_before_anything_runs(url: str, core: Any) -> None:
    body = json.dumps({"prompt": ["a"] * 256, "n": 128, "max_tokens": 1}).encode()
    error = await served(url, http(TEXT, body), 400)
    assert error["param"] == "prompt" and "32768 choices" in error["message"] and "at most 256" in error["message"]
    assert core.streams == []
    set_limits(core, choices=4)
    error = await served(url, http(CHAT, b'{"messages": [{"role": "user", "content": "x"}], "n": 5}'), 400)
    assert error["param"] == "n" and "at most 4" in error["message"] and core.streams == []
    assert await served(url, http(TEXT, b'{"prompt": ["a", "b"], "n": 2, "max_tokens": 1}'), 200) is None
    assert len(core.streams) == 4, "negative control: as many as the limit allows"


@pytest.mark.parametrize(
    ("path", "head", "item", "tail", "param"),
    [
        (TEXT, b'{"prompt": [', b"[5],", b"[5]]}", None),
        (TEXT, b'{"prompt": [', b"5,", b"5]}", "prompt"),
        (TEXT, b'{"prompt": [[', b"123,", b"5]]}", "prompt"),
        (TEXT, b'{"prompt": "', b"\\u00e9", b'"}', "prompt"),
        (TEXT, b'{"prompt": "x", "stop": [', b'"a",', b'"b"]}', "stop"),
        (TEXT, b'{"prompt": "x", "stop_token_ids": [', b"7,", b"5]}", "stop_token_ids"),
        (CHAT, b'{"messages": [', b"{},", b"{}]}", None),
        (CHAT, b'{"messages": [{"role": "user", "content": [', b"1,", b"1]}]}", "messages"),
        (CHAT, b'{"messages": [{"role": "user", "content": "', "é".encode(), b'"}]}', "messages"),
        (CHAT, b'{"messages": [], "chat_template_kwargs": {"a": [', b"{},", b"{}]}}", None),
    ],
)
async def test_megabytes_of_json_are_refused_without_a_block(
    url: str, core: Any, path: str, head: bytes, item: bytes, tail: bytes, param: str | None
) -> None:
    size = 22_000_000 if param in (None, "prompt") and path == TEXT else 4_000_000
    body = head + item * (size // len(item)) + tail
    error = await served(url, http(path, body), 400)
    assert error["param"] == param and core.streams == []


async def test_parsing_such_a_body_in_this_process_would_block_the_loop(url: str, monkeypatch: Any) -> None:
    """Negative control of the tests above."""
    monkeypatch.setattr(large, "is_costly", lambda raw: False)
    async with watching() as watch:
        answer = await exchange(url.removeprefix("http://"), http(TEXT, b'{"prompt": [' + b"[5]," * 3_000_000 + b"5]}"))
    assert status_of(answer) == 400 and watch.longest_seconds > MOST_SECONDS


async def test_bodies_that_are_just_small_enough_are_parsed_here_without_a_block(url: str, core: Any) -> None:
    for fields in (
        ",".join(f'"f{n}":1' for n in range(6000)),
        '"metadata":[' + "[]," * 21_000 + "1]",
        '"user":"' + "\\u00e9" * 150_000 + '"',
    ):
        body = f'{{{fields},"prompt":"x","max_tokens":1}}'.encode()
        assert not large.is_costly(body) and len(body) > 50_000
        await served(url, http(TEXT, body), 200)


async def test_a_large_body_means_the_same_as_a_small_one(url: str, core: Any) -> None:
    fields = {
        "max_tokens": 3,
        "stream": False,
        "stop": ["zz"],
        "user": "x" * 300_000,
        "odd": 1,
        "prompt": [[65] * 99] * 2,
    }
    answer = await exchange(url.removeprefix("http://"), http(TEXT, json.dumps(fields).encode()))
    assert status_of(answer) == 200 and b"x-baton-ignored: user, odd" in answer
    assert [stream.choice.prompt for stream in core.streams] == [(65,) * 99] * 2
    error = await served(url, http(TEXT, json.dumps(fields | {"thinking_token_budget": 8}).encode()), 400)
    assert error["param"] == "thinking_token_budget"


@pytest.mark.parametrize("number", [2**63, 2**64, -(2**63) - 1, 10**30])
async def test_a_large_body_may_hold_numbers_of_more_than_64_bits(url: str, core: Any, number: int) -> None:
    ids = [1] * 70_000
    body = {"prompt": "x", "max_tokens": 1, "user": ids, "structured_outputs": {"json": {"default": number}}}
    answer = await exchange(url.removeprefix("http://"), http(TEXT, json.dumps(body).encode()))
    assert status_of(answer) == 200 and core.streams[0].choice.sampling.grammar
    inexact = body | {"structured_outputs": {"json": {"const": number}}}
    error = await served(url, http(TEXT, json.dumps(inexact).encode()), 400)
    assert error["param"] == "structured_outputs.json.const" and "not exact" in error["message"]
    wrong = await served(url, http(TEXT, json.dumps({"prompt": ids, "logit_bias": {"1": number}}).encode()), 400)
    assert wrong["param"] is not None and "memory" not in wrong["message"]


async def test_a_body_that_is_too_large_is_refused_before_it_is_read(url: str, core: Any) -> None:
    set_limits(core, body_mib=1)
    head = http(TEXT, b"").replace(b"content-length: 0", b"content-length: 22000000")
    error = await served(url, head, 413)
    assert "1 MiB" in error["message"] and "body_mib" in error["message"]
    head = http(TEXT, b"", "transfer-encoding: chunked").replace(b"content-length: 0\r\n", b"")
    chunk = b"10000\r\n" + b" " * 65_536 + b"\r\n"
    await served(url, head + chunk * 40, 413)
    assert (await served(url, head + chunk + b"12\r\n" + b'{"prompt": "xyzw"}' + b"\r\n0\r\n\r\n", 200)) is None


async def test_a_gzip_body_is_read_and_a_bomb_is_not(url: str, core: Any) -> None:
    coded = gzip.compress(b'{"prompt": "x"}')
    assert await served(url, http(TEXT, coded, "content-encoding: gzip"), 200) is None
    bomb = gzip.compress(b" " * 200_000_000, 9)
    error = await served(url, http(TEXT, bomb, "content-encoding: gzip"), 413)
    assert "32 MiB" in error["message"] and len(bomb) < 250_000
    for broken in (coded[:-3], coded + b"x", b"no gzip", b""):
        error = await served(url, http(TEXT, broken, "content-encoding: gzip"), 400)
        assert "gzip" in error["message"]


async def test_a_header_of_150_megabytes_is_refused_and_not_read(url: str) -> None:
    for data in (
        b"GET / HTTP/1.1\r\nx: " + b"a" * 150_000_000,
        b"GET /" + b"a" * 10_000_000 + b" HTTP/1.1\r\n",
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 1_000_000,
        b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: " + b"a" * 10_000_000,
        b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1;" + b"a" * 10_000_000,
    ):
        assert (await served(url, data, 431))["reason"] == "HEADERS_TOO_LARGE"
    headers = [f"a{n}: b" for n in range(MAX_HEADERS - 10)]
    assert await served(url, http("/health", b"", *headers, method="GET"), 200) is None, "negative control"


@pytest.mark.parametrize("data", [b"\x16\x03\x01\x02\x00", b"GET\r\n\r\n", b"\x00" * 5000, b"GET / HTTP/9.9\r\n\r\n"])
async def test_what_is_no_http_gets_a_json_error(url: str, data: bytes) -> None:
    assert (await served(url, data, 400))["reason"] == "MALFORMED_REQUEST"


# ---- odd JSON


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt": "x", "seed": ' + b"9" * 200_000 + b"}",
        b'{"prompt": "x", "temperature": 1e999}',
        b'{"prompt": "x", "temperature": NaN}',
        b'{"prompt": "x", "temperature": -Infinity}',
        b'{"prompt": "x", "n": 1.0e0000000000000000000001}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": ["\\udfff"]}',
        b'{"prompt": "x", "stop": "\\ud800"}',
        b'{"prompt": "\xed\xa0\x80"}',
        b'{"prompt": "x", "max_tokens": -1}',
        b'{"prompt": [5.0]}',
        b'{"prompt": [null]}',
        b'{"prompt": [[null]]}',
        b'{"prompt": [[5], "x"]}',
        b'{"prompt": [' + b"9" * 400 + b"]}",
        b'{"prompt": "x", "chat": ' + b"[" * 200 + b"]" * 200 + b"}",
        b'{"prompt": "x", "metadata": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
        b'{"prompt": "x"} {}',
        b'{"prompt": "x",}',
        b"\xef\xbb\xbf{}",
        b"\x00" * 1000,
        b"null",
        b"1" * 100_000,
    ],
    ids=lambda body: repr(body[:40]),
)
async def test_odd_json_is_an_error_of_the_client(url: str, core: Any, body: bytes) -> None:
    assert (await served(url, http(TEXT, body), 400))["type"] == "invalid_request_error"
    assert core.streams == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "the body is empty: send a JSON object"),
        (b" \n", "the body is empty: send a JSON object"),
        (b'{"prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}", "the body is nested deeper than 128 levels"),
        (b"[]", "the body must be a JSON object"),
    ],
    ids=lambda each: repr(each[:20]),
)
async def test_a_body_that_is_no_object_is_told_what_it_is(url: str, body: bytes, said: str) -> None:
    assert (await served(url, http(TEXT, body), 400))["message"] == said


async def test_nulls_and_repeated_keys_are_what_json_says(url: str, core: Any) -> None:
    body = b'{"prompt": "y", "prompt": "x", "n": null, "stop": null, "seed": null, "user": null, "stream": null}'
    assert await served(url, http(TEXT, body), 200) is None
    assert core.streams[0].choice.prompt == (ord("x"),)


async def test_a_large_chat_renders_and_tokenizes_beside_the_loop(url: str, core: Any, assets: Any) -> None:
    object.__setattr__(assets, "context_tokens", 2_000_000)
    for count, size in ((64, 4000), (20_000, 8)):
        message = {"role": "user", "content": "word " * (size // 5)}
        body = json.dumps({"messages": [message] * count, "max_tokens": 1}).encode()
        await served(url, http(CHAT, body), 200)


async def test_others_are_served_while_a_template_computes(url: str, core: Any, assets: Any) -> None:
    from gateway.text.chat import ChatTemplate

    slow_template = "{% for m in messages %}{% for x in range(90000) %}{% endfor %}{{ m.content }}{% endfor %}"
    object.__setattr__(assets, "template", ChatTemplate(slow_template, {}))
    message = {"role": "user", "content": "x" * 3000}
    body = json.dumps({"messages": [message] * 8, "max_tokens": 1}).encode()
    object.__setattr__(assets, "context_tokens", 100_000)
    await served(url, http(CHAT, body), 200)


def test_the_parser_of_large_bodies_refuses_what_is_no_message() -> None:
    """Each kind of error keeps its class on the way between the processes."""
    from gateway.dialects.openai.parsing import ParseOrder, answer_to

    def error(raw: bytes, **fields: Any) -> tuple[str, str | None]:
        order = ParseOrder("gateway.dialects.openai.types", "CompletionRequest", False, 10, 256, 0, 16)
        answer = answer_to(order, raw)
        return answer.error, answer.param

    check: Callable[..., Any] = error
    assert check(b"{") == ("InvalidRequest", None)
    assert check(json.dumps({"prompt": [5] * 99}).encode()) == ("ContextTooLong", "prompt")
    assert check(b'{"prompt": "x", "echo": 1}') == ("InvalidRequest", "echo")
    assert check(b'{"prompt": "x"}') == ("", None)
    assert check(json.dumps({"prompt": "x", "stop": ["ab"] * 17}).encode()) == ("InvalidRequest", "stop")
    assert check(b'{"prompt": "' + b'[\\"[{' * 200_000 + b'"}') == ("", None), "brackets in a text are text"
    assert check(b'{"prompt": "", "user": [' + b'["\\\\"],' * 200_000 + b"0]}") == ("InvalidRequest", None)


def test_integers_beyond_the_limit_are_counted_as_the_client_sent_them() -> None:
    from gateway.dialects.openai.parsing import CHEAP, MAX_VALUES, ParseOrder, answer_to

    raw = json.dumps({"prompt": "x", "allowed_token_ids": [7] * 2_000_000}).encode()
    answer = answer_to(ParseOrder("gateway.dialects.openai.types", "CompletionRequest", False, 10, 256, 0, 16), raw)
    assert (answer.error, answer.param) == ("InvalidRequest", "allowed_token_ids")
    assert f"has 2000000 integers; at most {MAX_VALUES * CHEAP} are allowed" in answer.message


@pytest.mark.parametrize(
    ("path", "before", "after", "param"),
    [
        (TEXT, b'{"prompt": "x", "structured_outputs": {"json": "', b'"}}', "structured_outputs.json"),
        (
            TEXT,
            b'{"prompt": "x", "structured_outputs": {"structural_tag": "',
            b'"}}',
            "structured_outputs.structural_tag",
        ),
        (
            "/v1/responses",
            b'{"input": [{"type": "function_call", "call_id": "1", "name": "f", "arguments": "',
            b'"}]}',
            "input[0].arguments",
        ),
        (
            CHAT,
            b'{"messages": [{"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "',
            b'"}}]}]}',
            None,
        ),
    ],
)
async def test_megabytes_of_json_within_a_text_are_refused_without_a_block(
    url: str, core: Any, path: str, before: bytes, after: bytes, param: str | None
) -> None:
    """Such a text is parsed on the event loop, whoever parses the body."""
    error = await served(url, http(path, before + b'{\\"a\\":[' + b"[]," * 3_000_000 + b"[]]}" + after), 400)
    assert core.streams == [] and error["param"] == (param or "messages")


async def test_parsing_megabytes_within_a_text_would_block_the_loop(url: str, monkeypatch: Any) -> None:
    """Negative control of the test above."""
    monkeypatch.setitem(vars(schema)["parse_json_text"].__kwdefaults__, "most", 1 << 30)
    text = b'{\\"a\\":[' + b"[]," * 3_000_000 + b"[]]}"
    async with watching() as watch:
        body = b'{"prompt": "x", "structured_outputs": {"json": "' + text + b'"}}'
        answer = await exchange(url.removeprefix("http://"), http(TEXT, body))
    assert status_of(answer) == 400 and watch.longest_seconds > MOST_SECONDS
