"""Sends raw bytes to a gateway and checks that its event loop serves others meanwhile."""

import json
from typing import Any

from tests.harness.blocks import MOST_SECONDS, exchange, status_of, watching
from tests.harness.longest_pass import best_of

TEXT = "/v1/completions"
CHAT = "/v1/chat/completions"


async def served(url: str, data: bytes, status: int) -> Any:
    """The error object of the answer. The loop serves others meanwhile; the best of some attempts counts."""

    async def attempt() -> tuple[bytes, float]:
        async with watching() as watch:
            answer = await exchange(url.removeprefix("http://"), data)
        assert status_of(answer) == status, answer[:400]
        return answer, watch.longest_seconds

    answer = await best_of(attempt, MOST_SECONDS)
    assert b"x-request-id: " in answer
    return json.loads(answer.partition(b"\r\n\r\n")[2]).get("error")


def set_limits(core: Any, **limits: Any) -> None:
    for name, value in limits.items():
        object.__setattr__(core.limits, name, value)
