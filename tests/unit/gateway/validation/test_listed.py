"""Long lists of logprobs: one bound for all prompts of a request, and short messages over gRPC."""

import struct
from typing import Any

import pytest

from gateway.core.interface import PromptScores
from gateway.grpc.reply import scored_parts
from mesh.config.door_config import DoorConfig
from mesh.messages.jobs import Ticket
from mesh.messages.reports import Scored
from tests.unit.gateway.conftest import FakeCore
from tests.unit.gateway.validation.test_thinking import post, refusal

LISTED = 2**21


@pytest.fixture
def core() -> FakeCore:
    return FakeCore(limits=DoorConfig(max_logprobs=-1))


async def test_the_prompts_of_a_request_share_one_bound(url: str, core: FakeCore) -> None:
    body: Any = {"max_tokens": LISTED // 256 // 64, "logprobs": 255}
    one, many = "x", ["x"] * 8
    for prompt, choices in ((one, 64), (many, 8)):
        await post(url, "/v1/completions", **body, prompt=prompt, n=choices)
        for more in ({"n": choices + 1}, {"n": choices, "logprobs": 256}):
            field, message = await refusal(url, "/v1/completions", **body | more, prompt=prompt)
            assert field == "logprobs" and "would list more than 2097152 logprobs in one answer" in message
    assert "number of prompts and choices" in message
    await post(url, "/v1/completions", **body | {"logprobs": 20}, prompt=many, n=9)  # few are not bounded


@pytest.mark.parametrize("top", [0, 2, 200, 60_000, 70_000])
def test_messages_about_long_lists_stay_short(top: int) -> None:
    count = 700 if top < 1000 else 3
    scored = Scored(
        Ticket(1, 1, bytes(16)),
        0,
        struct.pack(f"<{count}f", *range(count)),
        bytes(4 * count),
        bytes(4 * count * top),
        bytes(4 * count * top),
    )
    parts = [*scored_parts(PromptScores(tuple(range(count + 1)), (scored,)))]
    assert [value for part in parts for value in part.logprobs] == [*range(count)]
    assert [part.position for part in parts] == [1 + part.logprobs[0] for part in parts]
    assert all(len(part.token_ids) * top == len(part.top_ids) <= max(top, 65_536) for part in parts)
    assert len(parts[0].token_ids) == {0: 512, 2: 512, 200: 327}.get(top, 1), "as many as fit"
