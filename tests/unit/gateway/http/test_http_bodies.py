"""Bodies that no endpoint can read, or that are too long, are refused before anything is computed."""

from typing import Any

import msgspec
import pytest

from gateway.text.tokenizer import ModelTokenizer
from tests.unit.gateway.http_calls import TEXT, post, with_chat, with_text


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b'{"prompt": "\xff"}', b"[" * 5000, b"NaN"])
async def test_a_body_that_is_no_json_object_is_refused(url: str, body: bytes) -> None:
    answer = await post(url, "/v1/completions", body)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("header", "value"),
    [("content-type", "text/plain"), ("content-encoding", "br"), ("content-encoding", "GZIP, br")],
)
async def test_a_body_in_another_form_is_refused_with_the_headers_name(
    url: str, core: Any, header: str, value: str
) -> None:
    body = msgspec.json.encode(TEXT)
    answer = await post(url, "/v1/completions", body, **{header: value})
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (415, "invalid_request_error")
    assert header in error["message"] and value in error["message"] and core.streams == []
    fine = {"content-type": "application/json; charset=utf-8", "content-encoding": "identity"}
    assert (await post(url, "/v1/completions", body, **fine)).status_code == 200


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (with_text(prompt="x" * 3_000_000), "prompt"),
        (with_chat(messages=[{"role": "user", "content": "x" * 3_000_000}]), "messages"),
        (with_chat(messages=[{"role": "user", "content": "x"}] * 20_000), "messages"),
        (with_text(prompt=[5] * 100_000), "prompt"),
    ],
)
async def test_a_text_that_fits_into_no_context_is_refused_before_it_is_tokenized(
    url: str, core: Any, monkeypatch: pytest.MonkeyPatch, request_: Any, field: str
) -> None:
    def encode(self: ModelTokenizer, text: str, *, special: bool) -> tuple[int, ...]:
        raise AssertionError(f"{len(text)} characters were tokenized")

    monkeypatch.setattr(ModelTokenizer, "encode", encode)
    answer = await post(url, *request_)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, field)
    assert "shorten" in error["message"] and core.streams == []


async def test_the_first_prompt_that_is_too_long_ends_the_reading(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def encode(self: ModelTokenizer, text: str, *, special: bool) -> tuple[int, ...]:
        seen.append(text)
        return (5,) * len(text)

    monkeypatch.setattr(ModelTokenizer, "encode", encode)
    answer = await post(url, *with_text(prompt=["x", "y" * 600, "z"]))
    assert answer.status_code == 400 and "600 tokens" in answer.json()["error"]["message"]
    assert [text[0] for text in seen] == ["x", "y"]
