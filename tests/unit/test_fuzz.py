"""A slice of `make fuzz`; a broken target is reported with the seed that repeats it."""

from random import Random

import pytest

from tests.fuzz.__main__ import Slice, run, slices
from tests.fuzz.targets import TARGETS, Wrong


@pytest.mark.parametrize(
    ("target", "cases"),
    [("sse_frames", 600), ("tool_parsers", 300), ("templates", 150), ("translations", 500), ("answer_events", 300)],
)
def test_random_cases_break_nothing(target: str, cases: int) -> None:
    def fails(seed: int) -> str:
        try:
            TARGETS[target](Random(seed))
        except Exception as error:
            return f"{seed}: {error!r}"
        return ""

    assert list(filter(None, map(fails, range(cases)))) == []


def test_a_case_that_fails_is_named_with_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(rng: Random) -> None:
        if rng.random() == Random(7).random():
            raise Wrong("seven")

    monkeypatch.setitem(TARGETS, "broken", broken)
    assert run(Slice("broken", 5, 4)) == ["--target broken --seed 7: Wrong: seven"]


def test_cases_are_shared_among_the_targets() -> None:
    parts = slices(10_001, 1, sorted(TARGETS))
    assert sum(part.cases for part in parts) == 10_001 and {part.target for part in parts} == set(TARGETS)
