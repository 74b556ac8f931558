"""Processes of one gateway answer as one: the one that is asked adds what the others say."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from cli.local_mesh.loop import PreciseLoop
from gateway.dialects.common.headers import MORE_HEADERS, REQUEST_ID
from gateway.dialects.guard import KeyGuard
from gateway.process import whole_pages as pages
from gateway.process.siblings import OwnAnswer, Question, Siblings
from gateway.process.whole_pages import WholePages
from gateway.tenants.keys import KeyFile
from gateway.tenants.tenants import Tenants
from mesh.network.grpc_network import AddressError
from tests.unit.gateway.tenants.keys_files import SetClock, key_of, write_keys


def app_of(process: int) -> Starlette:
    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok", "prefill": 2, "decode": 1 + process})

    async def load(request: Request) -> Response:
        return JSONResponse({"server_load": 3, "running": 1 + process, "waiting": 2 - process})

    async def latest(request: Request) -> Response:
        count = int(request.query_params["limit"])
        times = [process + 10.0 * number for number in range(count)]
        return JSONResponse({"requests": [{"request_id": f"{process}-{at:g}", "started_at": at} for at in times]})

    async def one(request: Request) -> Response:
        own = request.path_params["name"].startswith(f"{process}-")
        return JSONResponse({"found": process}, 200 if own else 404)

    async def metrics(request: Request) -> Response:
        return PlainTextResponse(METRICS.format(process), headers={"x-kept": "yes"})

    routes = [("/health", health), ("/load", load), ("/debug/requests", latest), ("/debug/requests/{name}", one)]
    return Starlette(routes=[Route(path, page) for path, page in (*routes, ("/metrics", metrics), ("/own", load))])


METRICS = """# HELP a_total Things "of" {{all}} kinds.
# TYPE a_total counter
a_total{{kind="x}} y",process="{0}"}} {0}5
# HELP b Workers.
# TYPE b gauge
b{{worker="decode-0",tier="decode"}} 7
b{{worker="gateway-{0}",tier="gateway"}} 1
"""


@asynccontextmanager
async def processes(count: int, tenants: Tenants | None = None) -> AsyncIterator[list[WholePages]]:
    """`tenants`: whose keys every process asks its clients for."""
    name = uuid.uuid4().hex
    found = list[WholePages]()
    for number in range(count):
        app, siblings = app_of(number), Siblings(name, process=number, processes=count)
        guarded = app if tenants is None else KeyGuard(app, tenants, open_paths=(), count_error=lambda *_, **__: None)
        found.append(WholePages(guarded, app, siblings))
    for each in found:
        await each.listen()
    try:
        yield found
    finally:
        for each in found:
            await each.close()


async def get(
    app: Any, path: str, query: str = "", *, key: str = "", method: str = "GET"
) -> tuple[int, dict[bytes, bytes], bytes]:
    """The answer of an ASGI application, as a client would see it."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"accept-encoding", b"gzip"), *([(b"x-api-key", key.encode())] if key else [])]
    scope = {"type": "http", "method": method, "path": path, "query_string": query.encode(), "headers": headers}
    scope |= {REQUEST_ID: "r", MORE_HEADERS: []}
    await app(scope, receive, send)
    return sent[0]["status"], dict(sent[0]["headers"]), b"".join(part.get("body", b"") for part in sent[1:])


async def test_pages_about_the_gateway_speak_for_all_processes() -> None:
    async with processes(3) as (_, asked, _):
        status, _, body = await get(asked, "/health")
        assert status == 200 and json.loads(body) == {"status": "ok", "prefill": 2, "decode": 1, "processes": 3}
        _, _, body = await get(asked, "/load")
        assert json.loads(body) == {"server_load": 9, "running": 6, "waiting": 3}
        _, _, body = await get(asked, "/debug/requests", "limit=2")
        assert [each["request_id"] for each in json.loads(body)["requests"]] == ["2-12", "1-11"]
        for process in range(3):
            status, _, body = await get(asked, f"/debug/requests/{process}-7")
            assert (status, json.loads(body)) == (200, {"found": process})
        assert (await get(asked, "/debug/requests/9-7"))[0] == 404
        _, _, body = await get(asked, "/own")
        assert json.loads(body)["running"] == 2, "every other page is the process's own"


def test_health_of_several_models_is_merged_model_by_model() -> None:
    first = {
        "status": "ok",
        "prefill": 2,
        "decode": 3,
        "models": {"a": {"status": "ok", "decode": 2}, "b": {"decode": 1}},
    }
    second = {"status": "ok", "prefill": 2, "decode": 2, "models": {"a": {"status": "ok", "decode": 1}}}
    second["refused_workers"] = ["decode-9: it has another model"]
    whole = pages.health(*(OwnAnswer(200, json.dumps(first).encode()), [OwnAnswer(200, json.dumps(second).encode())]))
    assert json.loads(whole.content) == {
        "status": "ok",
        "prefill": 2,
        "decode": 2,
        "models": {"a": {"status": "ok", "decode": 1}, "b": {"decode": 1}},
        "refused_workers": ["decode-9: it has another model"],
        "processes": 2,
    }


async def test_head_of_a_shared_page_is_that_of_the_whole_page() -> None:
    async with processes(2) as (asked, _):
        _, whole, _ = await get(asked, "/metrics")
        _, head, _ = await get(asked, "/metrics", method="HEAD")
    assert head[b"content-length"] == whole[b"content-length"]


async def test_two_processes_with_one_number_are_told_so() -> None:
    async with processes(2) as (first, _):
        with pytest.raises(
            AddressError, match=r"gateway\.process: another process of the gateway at .* has the number 0"
        ):
            await first.listen()


SHARED = ("/health", "/v1/health", "/load", "/metrics", "/debug/requests", "/debug/requests/1-7")


async def test_a_caller_without_a_key_gets_no_page_of_any_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[str]()
    ask = Siblings.ask

    async def noted(self: Siblings, question: Question) -> list[OwnAnswer]:
        asked.append(question.path)
        return await ask(self, question)

    monkeypatch.setattr(Siblings, "ask", noted)
    tenants = Tenants(KeyFile(write_keys(tmp_path / "keys", alice="", ops="operator")), SetClock())
    async with processes(2, tenants) as (first, _):
        for path in SHARED:
            for key in ("", key_of("stranger")):
                status, _, body = await get(first, path, "limit=2", key=key)
                assert status == 401 and json.loads(body)["error"]["reason"] == "UNAUTHENTICATED"
        for path in ("/metrics", "/debug/requests", "/debug/requests/1-7"):
            status, _, body = await get(first, path, "limit=2", key=key_of("alice"))
            assert status == 403 and json.loads(body)["error"]["reason"] == "FORBIDDEN"
        assert asked == []
        _, _, body = await get(first, "/load", key=key_of("alice"))
        assert json.loads(body)["running"] == 3 and asked == ["/load"]
        status, _, body = await get(first, "/debug/requests/1-7", key=key_of("ops"))
        assert (status, json.loads(body)) == (200, {"found": 1})
        _, _, body = await get(first, "/metrics", key=key_of("ops"))
        assert b'process="0"' in body and b'process="1"' in body


async def test_metrics_have_the_series_of_all_processes_and_equal_ones_once() -> None:
    async with processes(2) as (_, asked):
        _, headers, body = await get(asked, "/metrics")
    assert headers[b"x-kept"] == b"yes" and int(headers[b"content-length"]) == len(body)
    assert body.decode().splitlines() == [
        '# HELP a_total Things "of" {all} kinds.',
        "# TYPE a_total counter",
        'a_total{kind="x} y",process="1"} 15',
        'a_total{kind="x} y",process="0"} 05',
        "# HELP b Workers.",
        "# TYPE b gauge",
        'b{worker="decode-0",tier="decode"} 7',
        'b{worker="gateway-1",tier="gateway"} 1',
        'b{worker="gateway-0",tier="gateway"} 1',
    ]


def test_openmetrics_end_once_and_keep_their_exemplars() -> None:
    text = b'# TYPE a histogram\na_bucket{process="%d",le="1.0"} 3 # {trace_id="ab"} 0.5 1.0\n# EOF\n'
    whole = pages.metrics(OwnAnswer(200, text % 0), [OwnAnswer(200, text % 1), OwnAnswer(503, b"x")])
    lines = whole.content.decode().splitlines()
    assert len(lines) == 4 and lines[-1] == "# EOF" and lines[2].endswith(' 3 # {trace_id="ab"} 0.5 1.0')


async def test_a_process_that_is_gone_is_left_out() -> None:
    async with processes(3) as (first, second, third):
        await third.close()
        _, _, body = await get(first, "/health")
        assert json.loads(body)["processes"] == 2
        _, _, body = await get(second, "/load")
        assert json.loads(body)["running"] == 3


async def test_a_process_that_hangs_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.process.siblings.ASK_SECONDS", 0.05)
    name = uuid.uuid4().hex
    asked, hung = (Siblings(name, process=number, processes=2) for number in range(2))

    async def never(question: Question) -> OwnAnswer:
        await asyncio.sleep(0.3)
        return OwnAnswer(200, b"late")

    await hung.listen(never)
    assert await asked.ask(Question("/health", "", "*/*")) == []
    await asyncio.sleep(0.3)
    await hung.close()


async def test_processes_of_another_gateway_are_strangers() -> None:
    async with processes(2), processes(2) as (asked, _):
        _, _, body = await get(asked, "/health")
        assert json.loads(body)["processes"] == 2


def test_processes_reach_each_other_on_the_loop_that_services_run_on() -> None:
    async def main() -> list[OwnAnswer]:
        name = uuid.uuid4().hex
        asked, other = (Siblings(name, process=number, processes=2) for number in range(2))

        async def answer(question: Question) -> OwnAnswer:
            return OwnAnswer(200, question.path.encode())

        await other.listen(answer)
        found = await asked.ask(Question("/load", "", "*/*"))
        await other.close()
        return found

    with asyncio.Runner(loop_factory=PreciseLoop) as runner:
        assert runner.run(main()) == [OwnAnswer(200, b"/load")]
