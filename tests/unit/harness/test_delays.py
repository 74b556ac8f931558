"""The places of the product that delays wrap: each still exists under its name."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.harness import delays

PLACES = {"gateway": 5, "prefill": 5, "decode": 4}


@pytest.mark.parametrize("tier", PLACES)
def test_every_place_that_a_delay_wraps_exists(tier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []
    monkeypatch.setattr(delays, "_wrap", lambda owner, name, make: found.append(make(getattr(owner, name))))
    delays.install(tier)
    assert len(found) == PLACES[tier] and all(callable(each) for each in found)


def test_every_stage_has_a_delay() -> None:
    taken = re.findall(r'(?:take|_slow_step)\("([^"]+)"\)', Path(delays.__file__).read_text())
    assert sorted(taken) == sorted(delays.STAGES)
