"""Damaged pages and late senders change no token; without the guard they do."""

from random import Random

import pytest

from tests.chaos.corruption import damage_many, undisturbed
from tests.harness.damage import KINDS

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
async def test_a_hundred_damages_change_no_bit_and_without_the_checksum_they_do(transport):
    oracle = await undisturbed()
    guarded = await damage_many(transport, 100, Random(1), oracle)
    assert (guarded.wrong_answers, guarded.leaked_pages, guarded.problems) == (0, 0, {})
    kinds = {*KINDS, "late"} if transport == "shm" else {*KINDS}  # over tcp the receiver drops what comes late
    assert kinds <= guarded.tally.damages.keys()
    unguarded = await damage_many(transport, 100, Random(1), oracle, mutants=("checksum",))
    assert unguarded.wrong_tokens > 0, "negative control: the damage is real"
