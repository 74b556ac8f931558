"""What a worker says of itself is checked field by field; the problem names the field."""

from dataclasses import fields, replace
from typing import Any

import pytest

from mesh.messages.adapters import NamedAdapter
from mesh.messages.field_checks import MOST_LETTERS
from mesh.messages.hello_checks import MOST, clamped, hello_problem, load_problem
from mesh.messages.hello_pairs import PageReach
from mesh.messages.jobs import Tier
from mesh.messages.page_shape import KV, ROWS, PageSegment, PageShape
from mesh.messages.page_shape_checks import shape_problem
from mesh.messages.reports import Hello, Load, PrefixChange

LOAD = Load(waiting=1, running=2, queued_tokens=3, free_pages=4, total_pages=8, tokens_per_second=5.5)
MODEL = PageSegment(KV, "model", 4, 2048, "pairs-v1", "bf16", heads=2, first_head=0, shard_heads=2, head_dim=16)
SHAPE = PageShape(16, (MODEL, PageSegment(ROWS, "latent", 2, 640)))
PAGES = PageReach("a host", 1000, SHAPE, ("shm", "tcp"))
HELLO = Hello(
    Tier.DECODE,
    1 << 63,
    "10.0.0.7:7000",
    "class",
    "print",
    "model",
    "hash",
    32,
    4096,
    LOAD,
    PrefixChange(0, (bytes(16),), (), True),
    name="decode-0",
    vocabulary=32_000,
    pages=PAGES,
)
WRONG: list[tuple[str, Any]] = [
    ("incarnation", 0),
    ("address", ""),
    ("address", "a\nb:1"),
    ("numerics", "x" * (MOST_LETTERS + 1)),
    ("fingerprint", "f\x1b[2J"),
    ("model", ""),
    ("model", "m" * 300),
    ("model_hash", "\x00"),
    ("page_tokens", 0),
    ("page_tokens", -32),
    ("page_tokens", 1 << 20),
    ("context_tokens", 0),
    ("context_tokens", 1 << 32),
    ("prefix", PrefixChange(0, (b"",), (), True)),
    ("prefix", PrefixChange(0, (bytes(65),), (), True)),
    ("name", "worker\n2026-01-01 INFO all is well"),
    ("vocabulary", -1),
    ("window_tokens", -1),
    ("chunk_tokens", -1),
    ("windowed_bands", 5),
    ("full_bands", 1 << 20),
    ("pages", replace(PAGES, host="a\nb")),
    ("pages", replace(PAGES, transports=("shm", "\x1b"))),
    ("pages", replace(PAGES, transports=("shm",) * 17)),
    ("pages", replace(PAGES, uid=-1)),
    ("pages", replace(PAGES, shape=PageShape(0, SHAPE.segments))),
    ("adapters", (NamedAdapter("a\nb", "0" * 64, "/a"),)),
    ("adapters", (NamedAdapter("a", "0" * 63, "/a"),)),
    ("adapters", (NamedAdapter("", "0" * 64, "/a"),)),
    ("adapters", (NamedAdapter("a", "0" * 64, "/a"),) * 1025),
    ("load", replace(LOAD, opened=1 << 40)),
    ("load", replace(LOAD, free_places=-1)),
    ("load", replace(LOAD, place_seconds=1e9)),
    ("load", replace(LOAD, place_seconds=float("nan"))),
    ("load", replace(LOAD, page_seconds=-1.0)),
    ("load", replace(LOAD, local_tokens_per_second=float("inf"))),
    ("load", replace(LOAD, waiting=-1)),
    ("load", replace(LOAD, running=1 << 40)),
    ("load", replace(LOAD, queued_tokens=1 << 60)),
    ("load", replace(LOAD, free_pages=9)),
    ("load", replace(LOAD, total_pages=-1)),
    ("load", replace(LOAD, tokens_per_second=-1.0)),
    ("load", replace(LOAD, tokens_per_second=1e-310)),
    ("load", replace(LOAD, local_tokens_per_second=1e-4)),
    ("load", replace(LOAD, tokens_per_second=float("nan"))),
    ("load", replace(LOAD, tokens_per_second=float("inf"))),
]


def test_a_sound_worker_has_no_problem() -> None:
    assert hello_problem(HELLO) == "" and hello_problem(replace(HELLO, load=Load(), name="", vocabulary=0)) == ""


@pytest.mark.parametrize(("field", "value"), WRONG)
def test_a_problem_names_its_field_on_one_line(field: str, value: Any) -> None:
    problem = hello_problem(replace(HELLO, **{field: value}))
    assert problem.partition(":")[0].partition(".")[0] == field and problem.isprintable()
    if isinstance(value, Load):
        assert load_problem(value) == problem


def test_every_field_that_can_be_wrong_is_checked() -> None:
    # Each value of these types means something.
    unchecked = {"tier", "examines", "adjusts_logits", "reports_pages", "all_cores", "loads_adapters"}
    assert {field.name for field in fields(Hello)} - unchecked == {field for field, _ in WRONG}
    for own, name, sound in ((Load, "load", LOAD), (PageReach, "pages", PAGES)):
        wrong = [value for field, value in WRONG if field == name]
        seen = {
            each.name
            for value in wrong
            for each in fields(own)
            if getattr(value, each.name) != getattr(sound, each.name)
        }
        assert seen == {each.name for each in fields(own)}


WRONG_SEGMENTS: list[tuple[str, Any]] = [
    ("kind", ""),
    ("kind", "k" * 17),
    ("content", "x" * 65),
    ("content", "a\nb"),
    ("content", "caf\u00e9"),
    ("layers", 0),
    ("layers", -1),
    ("layers", 1 << 20),
    ("layer_bytes", 0),
    ("layer_bytes", 2047),
    ("layer_bytes", 1 << 50),
    ("tiles", "\x1b"),
    ("dtype", "d" * 17),
    ("heads", -1),
    ("heads", 1 << 20),
    ("first_head", 3),
    ("first_head", -1),
    ("shard_heads", 3),
    ("shard_heads", 0),
    ("head_dim", 0),
    ("head_dim", 1 << 17),
]


@pytest.mark.parametrize(("field", "value"), WRONG_SEGMENTS)
def test_a_problem_of_a_pages_segment_names_it_and_its_field(field: str, value: Any) -> None:
    problem = shape_problem(PageShape(16, (replace(MODEL, **{field: value}),)))
    assert problem.startswith("shape.segments[0].") and problem.isprintable()
    assert field in problem.partition(":")[0]


def test_every_field_of_a_pages_shape_is_checked() -> None:
    assert {field.name for field in fields(PageSegment)} == {field for field, _ in WRONG_SEGMENTS}
    assert shape_problem(SHAPE) == ""
    for wrong, field in [
        (PageShape(1 << 17, (MODEL,)), "shape.page_tokens"),
        (PageShape(16, ()), "shape.segments"),
        (PageShape(16, (MODEL,) * 5), "shape.segments"),
        (PageShape(16, (replace(SHAPE.segments[1], layer_bytes=641),)), "shape.segments[0].layer_bytes"),
        (PageShape(1, (PageSegment("opaque", "x", 4096, 1 << 40),)), "shape.segments: bytes of a page"),
    ]:
        assert shape_problem(wrong).startswith(f"{field}"), wrong


def test_a_kind_of_a_later_version_is_sound_so_that_it_is_refused_by_its_name() -> None:
    assert shape_problem(PageShape(16, (PageSegment("window", "model", 2, 640),))) == ""


@pytest.mark.parametrize("load", [value for field, value in WRONG if field == "load"])
def test_a_worker_brings_its_own_figures_within_the_bounds(load: Load) -> None:
    assert load_problem(load) and load_problem(clamped(load)) == ""


def test_figures_within_the_bounds_stay_as_they_are() -> None:
    for load in (LOAD, Load(), replace(LOAD, tokens_per_second=1e-3), replace(LOAD, place_seconds=3600.0)):
        assert load_problem(load) == "" and clamped(load) == load
    assert MOST.keys() == {each.name for each in fields(Load)}


def test_what_is_beyond_a_bound_becomes_the_bound_and_no_number_becomes_zero() -> None:
    wild = replace(LOAD, place_seconds=1e9, page_seconds=float("nan"), tokens_per_second=1e-9, free_pages=1 << 60)
    assert clamped(wild) == replace(
        LOAD, place_seconds=3600.0, page_seconds=0.0, tokens_per_second=1e-3, free_pages=LOAD.total_pages
    )
