"""The stage of a cancelled request follows from what gateway, prefill and decode report of it."""

from typing import Any

import pytest

from tests.chaos.cancel_stages import Stages


def ended(phase: str, error: str | None = "Cancelled") -> dict[str, Any]:
    return {"name": "request_ended", "request": 1, "request_id": "mine", "phase": phase, "error": error}


def dropped(phase: str) -> dict[str, Any]:
    return {"name": "request_cancelled", "request": 1, "phase": phase}


def stopped(phase: str, done: int = 16) -> dict[str, Any]:
    return {"name": "prompt_stopped", "request": 1, "phase": phase, "done": done, "total": 32}


@pytest.mark.parametrize(
    ("events", "stage"),
    [
        ([ended("waiting")], "waiting"),
        ([ended("running"), dropped("running"), stopped("pushing", 32)], "decoding"),
        ([stopped("queued", 0), ended("running"), dropped("open")], "queued"),
        ([stopped("asked", 0), ended("running")], "asked"),
        ([stopped("pushing"), ended("running"), dropped("landing")], "pushing"),
        ([stopped("pushing", 32), ended("running"), dropped("landing")], "handing_over"),
        ([ended("running"), stopped("held", 32)], "handing_over"),
        ([ended("running"), dropped("open")], "decode open, prefill unknown"),
    ],
)
def test_events_of_all_services_give_one_stage(events: list[dict[str, Any]], stage: str) -> None:
    stages = Stages()
    for event in events:
        stages.take(event)
    assert dict(stages.hits()) == {stage: 1}
    assert stages.ends == {"mine": "Cancelled"}


@pytest.mark.parametrize("error", [None, "done", "WorkersDied"])
def test_a_request_that_was_not_cancelled_is_no_hit(error: str | None) -> None:
    stages = Stages()
    stages.take(ended("running", error))
    stages.take({"name": "landing_ended", "request": 1, "spans_valid": 0, "spans_total": 4, "proof": False})
    assert not stages.hits() and stages.ends == {"mine": error}
