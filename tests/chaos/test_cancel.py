"""Cancels at any moment leak no page: `python -m bench.cancel` is the test, and these are its controls."""

from random import Random

import pytest

from bench.cancel import cancel_many

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]


async def test_cancels_of_every_stage_leak_no_page():
    outcome = await cancel_many("shm", 120, Random(7), {})
    assert outcome.stages.total() == 120
    assert outcome.leaked_pages == 0 and not outcome.problems, outcome


async def test_without_repeated_aborts_and_their_answers_pages_leak():
    """Negative control: a cancel overtakes a Landing, nobody answers for the pages, and the bench sees them missing. It
    takes some luck to hit that moment, so the bench may try several times."""
    leaked = 0
    for seed in range(7, 13):
        outcome = await cancel_many("shm", 200, Random(seed), {"requiet": False})
        leaked += outcome.leaked_pages
        if leaked:
            return
    raise AssertionError("1,200 cancels without the rule, and no page leaked")
