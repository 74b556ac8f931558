"""A peer out of reach is warned about once per reason, and only when it has been so for a while."""

import asyncio
import logging

import pytest

from mesh.sessions.reach_log import MOST_PEERS, PATIENCE_SECONDS, ReachLog
from tests.sim.loop import run_virtual, virtual


@virtual
async def test_a_reason_is_logged_once_after_a_while_and_another_reason_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log = ReachLog(logging.getLogger("baton.test"))
    log.failed("gateway", "refused")
    assert caplog.messages == []
    await asyncio.sleep(PATIENCE_SECONDS)
    for reason in ("refused", "refused", "expired"):
        log.failed("gateway", reason)
    log.reached("gateway")
    log.failed("gateway", "refused")
    assert caplog.messages == [
        "cannot reach gateway: refused",
        "cannot reach gateway: expired",
        "gateway is reached again",
    ]


@virtual
async def test_a_peer_that_is_reached_in_time_is_not_mentioned(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log = ReachLog(logging.getLogger("baton.test"))
    log.failed("gateway", "refused")
    log.reached("gateway")
    assert caplog.messages == []


def test_strangers_do_not_fill_the_memory() -> None:
    async def many() -> int:
        log = ReachLog(logging.getLogger("baton.test"))
        for number in range(2 * MOST_PEERS):
            log.failed(f"decode host:{number}", "no such host")
        return len(log._failing)

    assert run_virtual(many()) == MOST_PEERS
