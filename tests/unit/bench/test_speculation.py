"""The statistics and the script of `bench.speculation`, and its loop on a tiny model: what is compared with what."""

from dataclasses import replace
from pathlib import Path

import pytest

from bench.speculation_figures import Point, Run, acceptance, chance, misses, scripted
from bench.speculation_runs import Bed, Fixed, ScriptedRequest
from decode_svc.speculation.draft_length import DraftLengths
from engine.builtin import tiny
from engine.loading.loaded import load_model
from mesh.messages.jobs import Sampling

TEXTS = (((1, b"a"), (2, b"b"), (3, b"c")),)
PLAIN = Run(seconds=2.0, texts=TEXTS, steps=2)
DRAFTED = Run(seconds=1.0, texts=TEXTS, steps=1, proposed=4, accepted=2, looked_at=3)


def test_the_first_token_is_prefills_and_counts_for_nobody():
    assert (PLAIN.tokens, PLAIN.tokens_per_second) == (3, 1.0)


def test_a_speedup_is_the_median_of_neighbours():
    slow = (replace(PLAIN, seconds=20.0), replace(DRAFTED, seconds=10.0))
    point = Point("p", ((PLAIN, DRAFTED), slow, (PLAIN, replace(DRAFTED, seconds=0.5))))
    assert (point.speedup.median, point.speedup.low, point.speedup.high) == (2.0, 2.0, 4.0)
    assert str(point.speedup).split() == ["2.000", "(2.000", "to", "4.000)"]


@pytest.mark.parametrize("other", [((1, b"a"), (2, b"b"), (4, b"c")), ((1, b"a"), (2, b"b"), (3, b"d"))])
def test_another_token_or_another_bit_of_a_logprob_is_not_identical(other):
    assert Point("p", ((PLAIN, DRAFTED), (PLAIN, DRAFTED))).identical
    assert not Point("p", ((PLAIN, DRAFTED), (PLAIN, replace(DRAFTED, texts=(other,))))).identical


def test_acceptance_is_of_all_drafts_and_the_chance_of_those_that_were_reached():
    assert (acceptance(DRAFTED), chance(DRAFTED)) == (0.5, 2 / 3)
    assert (acceptance(PLAIN), chance(PLAIN)) == (0.0, 0.0)


def test_a_script_is_right_as_often_as_it_should_be_and_always_the_same():
    truth = [5] * 4000
    script = scripted(truth, 0.7, seed=1, vocab=6)
    assert script == scripted(truth, 0.7, seed=1, vocab=6) != scripted(truth, 0.7, seed=2, vocab=6)
    assert 0.67 < script.count(5) / 4000 < 0.73 and set(script) == {5, 0}


def test_each_missed_target_is_a_line_and_what_was_not_measured_is_none():
    assert misses({"identical": True, "builtin_speedup_b1": 1.31}) == []
    report = {"identical": False, "builtin_speedup_b1": 1.2, "scripted_speedup_b1": 1.8, "speedup_b32": 0.9}
    assert [line.split()[0] for line in misses(report)] == ["identical:", "builtin_speedup_b1", "speedup_b32"]


@pytest.fixture
def bed(tmp_path: Path):
    model, draft = (tiny(tmp_path / str(seed), "llama2", dtype="bf16", seed=seed) for seed in (1, 2))
    opened = load_model(model, tmp_path / "cache", product_path="auto", page_tokens=16, draft=draft)
    bed = Bed(opened, threads=1, requests=3, slots=96)
    yield bed
    bed.close()


async def test_a_script_takes_the_drafts_place_and_the_text_stays(bed: Bed):
    requests = [
        ScriptedRequest((1, 2, 3), Sampling(max_tokens=30)),
        ScriptedRequest((9, 8), Sampling(temperature=1.0, seed=4, max_tokens=30)),
    ]
    plain = await bed.together(requests, Fixed(0))
    drafted = await bed.together(requests, Fixed(4))
    assert drafted.texts == plain.texts and drafted.proposed > 60 > plain.steps == 29
    right = [
        replace(request, script=tuple(t for t, _ in text)) for request, text in zip(requests, plain.texts, strict=True)
    ]
    perfect = await bed.one_by_one(right, Fixed(4))
    assert perfect.texts == plain.texts and perfect.accepted == perfect.proposed > 40 and perfect.steps < 20
    paced = await bed.together(right, DraftLengths(longest=8, prior=0.6))
    assert paced.texts == plain.texts
