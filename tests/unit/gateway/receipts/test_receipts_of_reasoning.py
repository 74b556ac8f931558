"""Receipts of answers whose reasoning has a limit."""

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from cli.receipts.requests import bodies, message
from gateway.receipts.canonical import read_receipt
from gateway.receipts.shape import shaped
from tests.unit.gateway.public_grpc import RICH_TEMPLATE

HI: Any = [{"role": "user", "content": "hi"}]
CHAT = "/v1/chat/completions"
LIMITED = {"type": "enabled", "budget_tokens": 7}
MESSAGE: Any = {"messages": HI, "max_tokens": 9, "thinking": LIMITED}


class TestModelThatReasons:
    @pytest.fixture
    def folder(self, folder: Path) -> Path:
        (folder / "chat_template.jinja").write_text(RICH_TEMPLATE)
        return folder

    async def test_the_limit_stands_in_the_receipt_and_is_sent_again(self, http: httpx2.AsyncClient) -> None:
        for path, body in ((CHAT, {"messages": HI, "thinking_token_budget": 7}), ("/v1/messages", MESSAGE)):
            old = read_receipt((await http.post(path, json=body | {"receipt": True})).content)
            assert old["parameters"]["thinking_token_budget"] == 7
            for asked in (body, None):
                (again,) = bodies(shaped(old), asked and json.loads(json.dumps(asked)), "hi", chat=True)
                assert again["thinking_token_budget"] == 7
                found = read_receipt((await http.post(CHAT, json=again)).content)
                assert found["parameters"] == old["parameters"]
            assert message(shaped(old), None, "hi", chat=True).sampling.thinking_token_budget == 7

    async def test_without_a_limit_it_stands_in_no_receipt(self, http: httpx2.AsyncClient) -> None:
        old = read_receipt((await http.post(CHAT, json={"messages": HI, "receipt": True})).content)
        assert "thinking_token_budget" not in old["parameters"]


async def test_a_limit_that_a_model_without_reasoning_keeps_is_not_sent_again(http: httpx2.AsyncClient) -> None:
    old = read_receipt((await http.post("/v1/messages", json=MESSAGE | {"receipt": True})).content)
    (again,) = bodies(shaped(old), json.loads(json.dumps(MESSAGE)), None, chat=True)
    assert (await http.post(CHAT, json=again)).status_code == 200
    refused = await http.post(CHAT, json=again | {"thinking_token_budget": 7})  # negative control
    assert refused.status_code == 400
