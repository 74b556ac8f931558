"""The trace of a request over HTTP, from its head to its last byte, in a mesh under virtual time.

Clients connect inside this process; tokens come from the simulated workers."""

import asyncio
import json
import logging
from typing import Any

import pytest

from gateway.tracing.slo_limits import Limits
from mesh.telemetry import semconv
from mesh.telemetry.logs import JsonFormatter
from mesh.telemetry.spans import RecordingTelemetry, SpanKind
from tests.harness.trees import own_seconds, root_of, spans_of, tiled_share
from tests.sim.http_mesh import CLIENT, HELLO, HttpMesh, assets, attributes
from tests.sim.loop import run_virtual, virtual


@virtual
async def test_the_server_span_and_the_generation_follow_the_conventions() -> None:
    mesh = await HttpMesh().start(1, 1)
    status, _ = await mesh.post(HELLO, headers=[(b"traceparent", CLIENT.encode()), (b"x-request-id", b"mine")])
    assert status == 200
    tree = await mesh.tree()
    root = root_of(tree)
    assert (root.name, root.kind) == ("POST /v1/chat/completions", SpanKind.SERVER)
    assert (f"{root.trace_id:032x}", f"{root.parent_id:016x}") == (CLIENT[3:35], CLIENT[36:52])
    assert root.attributes == {
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "url.path": "/v1/chat/completions",
        "url.scheme": "http",
        "http.response.status_code": 200,
        "baton.request_id": "mine",
        "baton.status": "ok",
        "baton.path": "remote",
    }
    chat = attributes(tree, "chat sim")
    wanted = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "baton",
        "gen_ai.request.model": "sim",
        "gen_ai.request.max_tokens": 12,
        "gen_ai.request.seed": 1,
        "gen_ai.request.stream": False,
        "gen_ai.response.id": "mine",
        "gen_ai.usage.output_tokens": 12,
        "gen_ai.usage.cache_read.input_tokens": 0,
    }
    assert chat.items() >= wanted.items()
    assert chat["gen_ai.response.finish_reasons"] == ("length",)
    assert 0.0 < chat["gen_ai.response.time_to_first_chunk"] < root.end_seconds - root.start_seconds


@virtual
async def test_a_client_that_wants_no_trace_gets_none() -> None:
    mesh = await HttpMesh().start(1, 1)
    await mesh.post(HELLO, headers=[(b"traceparent", CLIENT[:-2].encode() + b"00")])
    assert await mesh.trees() == []
    await mesh.post(HELLO)
    assert len(await mesh.trees()) == 1


@pytest.mark.parametrize(("share", "recorded"), [(0.0, 0), (0.5, 15), (1.0, 30)])
@virtual
async def test_the_share_decides_where_no_context_comes_in(share: float, recorded: int) -> None:
    mesh = HttpMesh(telemetry=RecordingTelemetry(share))
    for _ in range(30):
        await mesh.post(b"{}")
    assert len(await mesh.trees()) == pytest.approx(recorded, abs=0 if share in (0.0, 1.0) else 9)
    await mesh.post(b"{}", headers=[(b"traceparent", CLIENT.encode())])
    assert int(CLIENT[3:35], 16) in {tree[0].trace_id for tree in await mesh.trees()}


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        (b"{broken", 400, "INVALID_REQUEST"),
        (HELLO | {"model": "other"}, 404, "UNKNOWN_MODEL"),
        (HELLO | {"temperature": -1}, 400, "INVALID_REQUEST"),
        (HELLO | {"max_tokens": 10**6}, 400, "CONTEXT_TOO_LONG"),
    ],
)
@virtual
async def test_a_refused_request_is_a_tree_too(body: Any, status: int, error: str) -> None:
    mesh = await HttpMesh().start(1, 1)
    answered, content = await mesh.post(body)
    assert answered == status
    (listed,) = json.loads((await mesh.post(b"", path="/debug/requests"))[1])["requests"]
    assert (listed["http_status"], listed["message"]) == (status, json.loads(content)["error"]["message"])
    tree = await mesh.tree()
    root = root_of(tree)
    assert root.attributes[semconv.ERROR_TYPE] == error and root.attributes[semconv.STATUS] == "error"
    assert root.error == "", "the error is the client's"


@virtual
async def test_several_choices_share_one_generation() -> None:
    mesh = await HttpMesh().start(1, 2)
    await mesh.post(HELLO | {"n": 3, "temperature": 1.0})
    tree = await mesh.tree()
    names = [span.name for span in tree]
    assert names.count("chat sim") == 1 and names.count("decode") == names.count("route") == 3
    assert {span.attributes[semconv.CHOICE] for span in tree if span.name == "decode"} == {0, 1, 2}
    assert len(attributes(tree, "chat sim")["gen_ai.response.finish_reasons"]) == 3


@virtual
async def test_a_completion_of_several_prompts_is_one_request() -> None:
    mesh = await HttpMesh().start(1, 1)
    await mesh.post({"model": "sim", "prompt": ["one", "two"], "max_tokens": 4}, path="/v1/completions")
    tree = await mesh.tree()
    assert [span.name for span in tree].count("decode") == 2
    assert attributes(tree, "text_completion sim")["gen_ai.operation.name"] == "text_completion"


@virtual
async def test_a_client_that_hangs_up_ends_its_trace() -> None:
    mesh = await HttpMesh().start(1, 1)
    await mesh.post(HELLO | {"stream": True, "max_tokens": 150}, leaves_after=0.1)
    root = root_of(await mesh.tree())
    assert root.attributes[semconv.STATUS] == "cancelled"
    assert root.end_seconds - root.start_seconds == pytest.approx(0.1, abs=0.01)


@virtual
async def test_a_slow_client_shows_in_postprocess() -> None:
    mesh = await HttpMesh().start(1, 1)
    # More than a connection holds for a client that reads a little every two seconds.
    await mesh.post(HELLO | {"stream": True, "n": 4, "max_tokens": 150}, slow=2.0)
    tree = await mesh.tree()
    assert own_seconds(tree)[semconv.POSTPROCESS] > 0.1


@virtual
async def test_missed_limits_are_flagged_on_the_root() -> None:
    mesh = await HttpMesh(limits=Limits(ttft_seconds=0.001, itl_seconds=0.001)).start(1, 1)
    await mesh.post(HELLO)
    assert root_of(await mesh.tree()).attributes[semconv.SLO_VIOLATED] == ("ttft", "itl")
    kept = await HttpMesh(limits=Limits(ttft_seconds=10.0, itl_seconds=10.0)).start(1, 1)
    await kept.post(HELLO)
    assert semconv.SLO_VIOLATED not in root_of(await kept.tree()).attributes


@virtual
async def test_the_debug_pages_show_the_last_requests_and_their_spans() -> None:
    mesh = await HttpMesh().start(1, 1)
    for name in (b"first", b"second/with a slash".replace(b" ", b"-")):
        await mesh.post(HELLO, headers=[(b"x-request-id", name)])
    tree = (await mesh.trees())[1]
    status, raw = await mesh.post(b"", path="/debug/requests?limit=1")
    (newest,) = json.loads(raw)["requests"]
    assert status == 200 and newest["request_id"] == "second/with-a-slash"
    known = {"model": "sim", "path": "local", "status": "ok", "error": "", "completion_tokens": 12}
    assert newest.items() >= known.items() and newest["complete"]
    assert newest["started_at"] == pytest.approx(1000.0 + root_of(tree).start_seconds)
    assert newest["trace_id"] == f"{tree[0].trace_id:032x}"
    status, raw = await mesh.post(b"", path="/debug/requests/second/with-a-slash")
    shown = spans_of(json.loads(raw))
    assert [span.name for span in shown] == [span.name for span in tree]
    exact, read = own_seconds(tree), own_seconds(shown)
    assert all(read.get(name, 0.0) == pytest.approx(seconds, abs=1e-9) for name, seconds in exact.items())
    assert "hello" not in raw.decode()


@virtual
async def test_a_running_request_is_shown_up_to_now() -> None:
    mesh = await HttpMesh().start(1, 1)
    task = asyncio.ensure_future(mesh.post(HELLO | {"max_tokens": 100}, headers=[(b"x-request-id", b"r")]))
    await asyncio.sleep(0.1)
    running = json.loads((await mesh.post(b"", path="/debug/requests/r"))[1])
    assert running["status"] == "running" and not running["complete"]
    assert running["seconds"] == pytest.approx(0.1, abs=0.01) and running["ttft_seconds"] is not None
    assert tiled_share(spans_of(running)) >= 0.98
    await task


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [("/debug/requests/unknown", 404, "no request 'unknown' here"), ("/debug/requests?limit=x", 400, "limit is 'x'")],
)
@virtual
async def test_a_wrong_question_to_the_debug_pages_gets_a_clear_answer(path: str, status: int, words: str) -> None:
    got, raw = await HttpMesh().post(b"", path=path)
    assert got == status and words in json.loads(raw)["error"]["message"]


@virtual
async def test_a_refused_request_is_counted_as_refused_and_one_that_fails_later_is_not() -> None:
    mesh = HttpMesh()
    tally = mesh.cluster.gateway.sequencer.tally
    status, _ = await mesh.post(HELLO | {"max_tokens": -1})
    assert (status, tally.refused, tally.statuses["error"]) == (400, 1, 0)
    status, _ = await mesh.post(HELLO)
    assert (status, tally.refused, tally.statuses["error"]) == (503, 1, 1), "no worker came in time"
    await mesh.cluster.start(1, 1)
    status, _ = await mesh.post(HELLO)
    assert (status, tally.refused, tally.statuses["ok"]) == (200, 1, 1), "negative control"


def test_each_request_is_one_line_of_the_log_without_its_content(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> set[str]:
        mesh = await HttpMesh().start(1, 1)
        await mesh.post(HELLO, headers=[(b"x-request-id", b"mine")])
        await mesh.post(b"{broken")
        return {f"{tree[0].trace_id:032x}" for tree in await mesh.trees()}

    with caplog.at_level(logging.INFO, "baton.request"):
        trace_ids = run_virtual(main())
    first, second = (record for record in caplog.records if record.name == "baton.request")
    assert "request mine" in first.getMessage() and "hello" not in first.getMessage()
    line = json.loads(JsonFormatter("gateway").format(first))
    wanted = {"service": "gateway", "event": "request", "request_id": "mine", "status": "ok", "path": "remote"}
    assert line.items() >= wanted.items()
    assert line["completion_tokens"] == 12 and 0 < line["ttft_seconds"] < line["seconds"]
    refused = json.loads(JsonFormatter("gateway").format(second))
    assert (refused["status"], refused["error"], refused["ttft_seconds"]) == ("error", "INVALID_REQUEST", None)
    assert {line["trace_id"], refused["trace_id"]} == trace_ids


def test_prompts_and_outputs_are_logged_only_where_the_setting_asks_for_them(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        mesh = HttpMesh()
        mesh.cluster.gateway.traces.show_content(lambda ids, model: assets().tokenizer.decode(ids))
        await mesh.cluster.start(1, 1)
        await mesh.post(HELLO)

    with caplog.at_level(logging.INFO, "baton.request"):
        run_virtual(main())
    (record,) = (record for record in caplog.records if record.name == "baton.request")
    assert "hello" in record.getMessage()
    line = json.loads(JsonFormatter("gateway").format(record))
    assert "hello" in line["prompts"][0] and line["outputs"][0]
