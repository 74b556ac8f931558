"""The tokenizer's endpoints: prompts become tokens, tokens their text, and the configuration is shown."""

import json
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from gateway.prompts.assets import load_assets
from tests.harness.served_api import served_api
from tests.unit.gateway.conftest import FakeCore
from tests.unit.gateway.dialects.native.calls import refused, whole


async def test_a_prompt_becomes_its_tokens_and_tokens_their_text(url: str) -> None:
    answer = await whole(url, "/tokenize", prompt="hi<|end|>", return_token_strs=True)
    assert answer == {"count": 3, "max_model_len": 512, "tokens": [104, 105, 257], "token_strs": ["h", "i", "<|end|>"]}
    assert (await whole(url, "/tokenize", model="tiny", prompt="é"))["token_strs"] is None
    assert await whole(url, "/detokenize", tokens=[104, 105, 257]) == {"prompt": "hi<|end|>"}
    assert await whole(url, "/detokenize", tokens=[]) == {"prompt": ""}


async def test_a_chat_becomes_the_tokens_that_its_answer_would_see(url: str, core: FakeCore) -> None:
    messages = [{"role": "user", "content": "hi <|end|>"}]
    for more in ({}, {"add_generation_prompt": False}, {"chat_template_kwargs": {"shout": True}}):
        answer = await whole(url, "/tokenize", messages=messages, **more)
        await whole(url, "/v1/chat/completions", messages=messages, **more)
        assert tuple(answer["tokens"]) == core.streams[-1].choice.prompt
    open_end = [*messages, {"role": "assistant", "content": "so"}]
    answer = await whole(url, "/tokenize", messages=open_end, continue_final_message=True)
    assert answer["tokens"][-2:] == [*b"so"]


@pytest.mark.parametrize(
    ("path", "body", "param", "what"),
    [
        ("/tokenize", {}, "prompt", "missing"),
        ("/tokenize", {"prompt": "a", "messages": []}, "prompt", "exclude"),
        ("/tokenize", {"messages": []}, "messages", "at least one"),
        ("/tokenize", {"prompt": "a", "chat_template": "x"}, "chat_template", "messages"),
        ("/tokenize", {"prompt": "a", "model": "other"}, "model", "not served"),
        ("/tokenize", {"prompt": "a" * 100_000}, "prompt", "maximum context length is 512"),
        ("/tokenize", {"prompt": ["a"]}, "prompt", "Expected"),
        ("/detokenize", {}, "tokens", "missing"),
        ("/detokenize", {"tokens": [261]}, "tokens", "0 to 260"),
        ("/detokenize", {"tokens": [-1]}, "tokens", "0 to 260"),
        ("/detokenize", {"tokens": [1] * 513}, "tokens", "512"),
    ],
)
async def test_what_cannot_be_tokenized_is_refused_by_name(
    url: str, core: FakeCore, path: str, body: Any, param: str, what: str
) -> None:
    field, message = await refused(url, path, **body)
    assert field == param and what in message
    assert core.errors == ["UNKNOWN_MODEL" if param == "model" else core.errors[0]] and core.streams == []


async def test_the_tokenizers_configuration_has_texts_template_and_end_of_sequence(url: str, folder: Path) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=None) as client:
        info = (await client.get("/tokenizer_info")).json()
        unknown = await client.get("/tokenizer_info?model=other")
    assert info["eos_token"] == "<|end|>" and info["bos_token"] == "<|begin|>"
    assert info["tokenizer_class"] and "<|assistant|>" in info["chat_template"]
    assert unknown.status_code == 404 and unknown.headers["x-error-reason"] == "UNKNOWN_MODEL"


async def test_the_end_of_sequence_is_named_even_where_the_file_does_not(core: FakeCore, folder: Path) -> None:
    config = {"bos_token": {"content": "<|begin|>", "lstrip": False}, "chat_template": "{{ messages }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    async with served_api(core, load_assets(folder, "tiny")) as address, httpx.AsyncClient(timeout=None) as client:
        info = (await client.get(f"http://{address}/tokenizer_info")).json()
    assert info["eos_token"] == "<|end|>" and info["bos_token"] == "<|begin|>"
