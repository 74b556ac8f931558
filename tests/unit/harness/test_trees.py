"""The checks of trees themselves: an orphan, a hole and a delay are found."""

import pytest

from mesh.telemetry.spans import SpanRecord
from tests.harness.trees import leaves, orphans, own_seconds, own_shares, picture, root_of, tiled_share


def span(name: str, span_id: int, parent_id: int, start: float, end: float) -> SpanRecord:
    return SpanRecord("gateway", name, 1, span_id, parent_id, start, end)


ROOT, CHAT = span("POST /v1/completions", 1, 77, 0.0, 10.0), span("chat x", 2, 1, 0.0, 10.0)
PREFILL, DECODE = span("prefill", 3, 2, 1.0, 6.0), span("decode", 4, 2, 1.0, 10.0)
TREE = [
    *(ROOT, CHAT, span("preprocess", 5, 2, 0.0, 1.0), PREFILL, DECODE),
    *(span("queue", 6, 3, 1.0, 2.0), span("compute", 7, 3, 2.0, 5.0), span("kv.send", 8, 3, 3.0, 6.0)),
    *(span("kv.receive", 9, 4, 1.0, 7.0), span("generate", 10, 4, 7.0, 10.0)),
]


def test_a_whole_tree_has_no_orphan_and_no_hole() -> None:
    assert root_of(TREE) is ROOT and orphans(TREE) == [] and tiled_share(TREE) == 1.0
    assert {leaf.name for leaf in leaves(TREE)} == {
        "preprocess",
        "queue",
        "compute",
        "kv.send",
        "kv.receive",
        "generate",
    }


def test_each_moment_has_one_owner() -> None:
    own = own_seconds(TREE)
    assert own == {
        "preprocess": 1.0,
        "queue": 1.0,
        "compute": 3.0,
        "kv.send": 1.0,
        "kv.receive": 1.0,
        "generate": 3.0,
    }
    assert own_shares(TREE)["generate"] == pytest.approx(0.3)


def test_a_blocked_loop_takes_its_time_from_the_span_that_it_interrupts() -> None:
    own = own_seconds([*TREE, span("loop.blocked", 11, 7, 3.0, 4.0)])
    assert own["loop.blocked"] == 1.0 and own["compute"] == 2.0
    hidden = own_seconds([*TREE, span("loop.blocked", 11, 9, 3.0, 4.0)])
    assert "loop.blocked" not in hidden, "decode only waited then"


def test_a_hole_and_an_orphan_are_found() -> None:
    holed = [one for one in TREE if one.name not in ("kv.receive", "kv.send")]
    assert tiled_share(holed) == pytest.approx(0.8)
    assert own_seconds(holed)[""] == pytest.approx(2.0)
    without = [one for one in TREE if one is not PREFILL]
    assert {one.name for one in orphans(without)} == {"queue", "compute", "kv.send"}
    assert "generate (gateway)" in picture(without)
