"""A request's spans as a tree: every moment belongs to one span, and `baton explain` says why the request was slow."""

from typing import Any

import pytest

from cli.why.explain import as_json, lines
from cli.why.reasons import reasons
from cli.why.waterfall import waterfall

Json = dict[str, Any]


def span(span_id: str, parent: str, name: str, start: float, end: float, service: str = "gateway", **more: Any) -> Json:
    return {
        "service": service,
        "name": name,
        "span_id": span_id,
        "parent_id": parent,
        "start_ms": start,
        "duration_ms": end - start,
        "attributes": more,
        "events": [],
        "links": [],
    }


def request(*spans: Json, status: str = "ok", error: str = "", total: float = 100.0) -> Json:
    """A request of `total` milliseconds with these stages below its `chat` span, whose id is c."""
    frames = [span("r", "client", "POST /v1/chat/completions", 0, total), span("c", "r", "chat tiny", 0, total)]
    about = {"request_id": "one", "trace_id": "ab", "path": "remote", "status": status, "error": error}
    counts = {"prompt_tokens": 8, "completion_tokens": 5, "ttft_seconds": 0.05, "seconds": total / 1000}
    return {**about, **counts, "spans": [*frames, *spans]}


def own(trace: Json) -> dict[str, float]:
    fall = waterfall(trace["spans"])
    return {f"{node.service} {node.name}": node.own for node in fall.root.walk() if node.own}


HANDED = request(
    span("p", "c", "prefill", 10, 60),
    span("p1", "p", "dispatch", 10, 15),
    span("p2", "p", "compute", 15, 50, "prefill-0", **{"baton.tokens": 8, "baton.cached_tokens": 0}),
    span("p3", "p", "kv.send", 30, 60, "prefill-0", **{"baton.kv.hidden_share": 0.75, "baton.kv.bytes": 1 << 20}),
    span("d", "c", "decode", 10, 95),
    span("d1", "d", "kv.reserve", 12, 20, "decode-0"),
    span("d2", "d", "kv.receive", 20, 62, "decode-0"),
    span("d3", "d", "generate", 62, 95, "decode-0", **{"baton.steps": 4, "baton.floor_seconds": 0.003}),
    span("a", "c", "preprocess", 0, 10),
    span("z", "c", "postprocess", 95, 100),
)


def test_time_that_compute_hides_belongs_to_compute_and_only_the_rest_to_the_transfer() -> None:
    assert own(HANDED) == pytest.approx(
        {
            "gateway preprocess": 10,
            "gateway dispatch": 5,
            "prefill-0 compute": 35,
            "prefill-0 kv.send": 10,
            "decode-0 kv.receive": 2,
            "decode-0 generate": 33,
            "gateway postprocess": 5,
        }
    )


def test_the_stages_of_a_request_tile_it() -> None:
    assert waterfall(HANDED["spans"]).tiled == pytest.approx(1.0)


def test_a_hole_between_two_stages_is_counted_as_a_hole() -> None:
    trace = request(span("a", "c", "preprocess", 0, 10), span("z", "c", "postprocess", 40, 100))
    assert waterfall(trace["spans"]).tiled == pytest.approx(0.7)
    assert "30% of the time belongs to no stage." in reasons(trace, waterfall(trace["spans"]))


def test_a_blocked_loop_takes_its_time_from_the_span_that_it_interrupts() -> None:
    trace = request(
        span("d", "c", "decode", 0, 100),
        span("d1", "d", "generate", 0, 100, "decode-0"),
        span("b", "d1", "loop.blocked", 20, 60, "decode-0"),
    )
    assert own(trace) == pytest.approx({"decode-0 generate": 60, "decode-0 loop.blocked": 40})


def test_a_blocked_loop_of_a_span_that_only_waits_takes_nothing_from_the_work_elsewhere() -> None:
    trace = request(
        span("d", "c", "decode", 0, 100),
        span("d1", "d", "kv.receive", 0, 100, "decode-0"),
        span("b", "d1", "loop.blocked", 20, 60, "decode-0"),
        span("p", "c", "prefill", 0, 100),
        span("p1", "p", "compute", 0, 100, "prefill-0"),
    )
    assert own(trace) == pytest.approx({"prefill-0 compute": 100})


def test_spans_without_their_parent_are_orphans() -> None:
    fall = waterfall(request(span("x", "gone", "compute", 10, 20))["spans"])
    assert [node.name for node in fall.orphans] == ["compute"]
    assert any("lost their parents" in line for line in reasons(request(), fall))


def test_no_spans_have_no_waterfall() -> None:
    with pytest.raises(ValueError, match="root span"):
        waterfall([])


# ---- what `baton explain` says


def test_the_reasons_name_what_dominated_its_floor_and_the_hidden_share() -> None:
    compute, generate, hidden = reasons(HANDED, waterfall(HANDED["spans"]))
    assert compute.startswith("prefill-0 computed 8 of 8 tokens for 35 ms (35%)")
    assert generate.startswith("decode-0 generated tokens for 33 ms (33%), 8.2 ms a step, 11.0 times the least")
    assert hidden.startswith("The hand-off moved 1.0 MiB over ?; 75% of it was hidden")


def test_a_failed_request_says_why_and_where() -> None:
    lacks = {"baton.waits_for": "decode worker"}
    stages = span("a", "c", "admission", 0, 100, **lacks), span("z", "c", "postprocess", 100, 101)
    trace = request(*stages, status="error", error="UNAVAILABLE", total=101)
    trace |= {"message": "no decode worker is attached", "http_status": 503}
    why, waited = reasons(trace, waterfall(trace["spans"]))
    assert why == (
        "The request failed with HTTP 503 UNAVAILABLE: no decode worker is attached. The last stage was admission at "
        "gateway."
    )
    assert waited.startswith("It waited 100 ms (99%) while no decode worker was attached")


def test_a_refused_request_has_its_status_and_message_and_no_verdict_about_microseconds() -> None:
    spans = span("a", "c", "preprocess", 0, 0.06), span("z", "c", "postprocess", 0.06, 0.1)
    trace = request(*spans, status="error", error="INVALID_REQUEST", total=0.1)
    trace |= {"message": "top_p is 7; it must be at most 1", "http_status": 400, "path": "", "ttft_seconds": None}
    fall = waterfall(trace["spans"])
    said = "The gateway refused the request with HTTP 400 INVALID_REQUEST: top_p is 7; it must be at most 1."
    assert reasons(trace, fall) == [said]
    assert lines(trace, fall)[0].endswith("at no worker  error: HTTP 400 INVALID_REQUEST")
    grpc = {**trace["spans"][0], "attributes": {"rpc.response.status_code": "INVALID_ARGUMENT"}}
    (said,) = reasons(trace, waterfall([grpc, *trace["spans"][1:]]))
    assert "with gRPC INVALID_ARGUMENT INVALID_REQUEST: top_p" in said


def test_a_full_mesh_is_told_apart_from_a_mesh_without_workers() -> None:
    trace = request(
        span("a", "c", "admission", 0, 50, **{"baton.waits_for": "prefill worker"}),
        span("b", "c", "admission", 50, 100, **{"baton.waits_for": "room"}),
    )
    said = " ".join(reasons(trace, waterfall(trace["spans"])))
    assert "50 ms (50%) while no prefill worker was attached" in said and "50 ms (50%) until a worker had room" in said


@pytest.mark.parametrize(
    ("measured", "said"),
    [
        ({}, "alone; the cause is not known from the trace."),
        ({"baton.steps.shared": 0, "baton.batch": 1}, "alone; no other request was in its steps, and the cause is not"),
        (
            {"baton.steps.shared": 3, "baton.batch": 5},
            "alone: 3 of its 4 steps computed other requests too, up to 5 in",
        ),
    ],
)
def test_only_measured_causes_are_named_for_a_stage_far_from_its_floor(measured: Json, said: str) -> None:
    floor = {"baton.steps": 4, "baton.floor_seconds": 0.003, **measured}
    trace = request(span("d", "c", "decode", 0, 100), span("g", "d", "generate", 0, 100, "decode-0", **floor))
    (sentence,) = reasons(trace, waterfall(trace["spans"]))
    assert said in sentence and "busy" not in sentence


def test_a_blocked_loop_is_a_measured_cause() -> None:
    floor = {"baton.steps": 4, "baton.floor_seconds": 0.003, "baton.steps.shared": 0}
    trace = request(
        span("d", "c", "decode", 0, 100),
        span("g", "d", "generate", 0, 100, "decode-0", **floor),
        span("b", "g", "loop.blocked", 20, 60, "decode-0"),
    )
    assert "alone: the event loop of decode-0 stood still for 40 ms" in " ".join(
        reasons(trace, waterfall(trace["spans"]))
    )


def test_a_death_is_one_sentence_that_says_what_it_cost() -> None:
    ended = {"baton.lost": "worker_ended", "baton.attempt": 1}
    died = {"baton.worker.died": True, "baton.worker": "decode-1", "baton.resume_seconds": 0.03}
    trace = request(
        span("p", "c", "prefill", 0, 10, **ended),
        span("p1", "p", "compute", 0, 10, "prefill-0"),
        span("d", "c", "decode", 0, 45, **ended, **died),
        span("d1", "d", "generate", 10, 40, "decode-1", **{"baton.worker.died": True, "baton.tokens": 7}),
        span("d2", "d", "silence", 40, 45),
        span("e", "c", "decode", 45, 100),
        span("e1", "e", "generate", 45, 100, "decode-0"),
    )
    first, *others = reasons(trace, waterfall(trace["spans"]))
    assert first.startswith(
        "Attempt 1: decode-1 died while it generated, 7 tokens after it began. The gateway noticed 5 ms after the last "
        "that came from it. Resuming cost 30 ms"
    )
    assert not any("ended early" in line or "way back" in line for line in others)


def test_a_resumed_request_says_which_attempt_was_lost() -> None:
    lost = {"baton.lost": "session_ended", "baton.worker": "decode-1", "baton.attempt": 1}
    trace = request(
        span("d", "c", "decode", 0, 40, **lost),
        span("d1", "d", "generate", 0, 40, "decode-1"),
        span("e", "c", "decode", 40, 100),
        span("e1", "e", "generate", 40, 100, "decode-0"),
    )
    first = reasons(trace, waterfall(trace["spans"]))[0]
    assert first.startswith("Attempt 1 at decode-1 ended early (session_ended) after 40 ms")


def test_stages_that_repeat_are_summed_and_the_tree_keeps_its_own_figures() -> None:
    trace = request(
        span("d", "c", "decode", 0, 100),
        span("d1", "d", "queue", 0, 40, "decode-0"),
        span("d2", "d", "generate", 40, 50, "decode-0"),
        span("d3", "d", "queue", 50, 100, "decode-0"),
    )
    fall = waterfall(trace["spans"])
    assert reasons(trace, fall)[0].startswith("It waited 90 ms (90%) for its turn at decode-0")
    assert fall.tiled == pytest.approx(1.0)


def test_the_picture_has_a_line_for_every_span_and_fits_the_terminal() -> None:
    drawn = lines(HANDED, waterfall(HANDED["spans"]), columns=100)
    for name in ("preprocess", "kv.send", "generate", "postprocess"):
        assert sum(line.strip().startswith(name) for line in drawn) == 1
    rows = [line for line in drawn if "█" in line]
    assert rows and max(map(len, rows)) <= 100
    generate = next(line for line in drawn if line.strip().startswith("generate"))
    assert [line.partition(":")[0] for line in drawn if line.startswith(("own:", "floor:"))] == ["own", "floor"]
    assert "33 ms" in generate and "33.0%" in generate and "3.00 ms" in generate


def test_the_json_has_shares_and_floors() -> None:
    found = as_json(HANDED, waterfall(HANDED["spans"]))
    stages = {stage["stage"]: stage for stage in found["stages"]}
    assert stages["generate"]["floor_ms"] == pytest.approx(3.0) and stages["compute"]["floor_ms"] is None
    assert sum(stage["own_share"] for stage in found["stages"]) == pytest.approx(found["tiled"])
    assert "spans" not in found and found["request_id"] == "one"
