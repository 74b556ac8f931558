"""The built-in pair in a mesh of real processes: it knows what Baton is, holds a conversation and calls tools."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from cli.clients.client import chat_request, sampling, stream
from cli.connecting.health import get_json
from cli.local_mesh.own_mesh import own_mesh
from mesh.config.services import GatewayConfig
from models.questions import DEMO, names_all
from models.wordings import HELD_WORDINGS
from tests.harness.trees import orphans, picture, spans_of, tiled_share

pytestmark = pytest.mark.mesh
in_one_loop = pytest.mark.asyncio(loop_scope="module")

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 120.0
STATUS: Any = {
    "type": "function",
    "function": {
        "name": "mesh_status",
        "description": "Look at the workers of a tier",
        "parameters": {
            "type": "object",
            "properties": {"tier": {"type": "string", "enum": ["prefill", "decode"]}},
            "required": ["tier"],
        },
    },
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mesh(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GatewayConfig]:
    """One prefill worker, two decode workers, no model named: the built-in one."""
    cache = str(tmp_path_factory.mktemp("cache"))
    async with own_mesh({"gateway.local": "never", "mesh.prefill_workers": "1", "cache_folder": cache}) as gateway:
        yield gateway


async def said(mesh: GatewayConfig, question: str, *, temperature: float = 0.0) -> str:
    request = sampling(chat_request([("user", question)]), max_tokens=120, temperature=temperature, seed=7)
    events = [event async for event in stream(mesh.grpc_address, request)]
    return "".join(event.delta.text for event in events)


@in_one_loop
@pytest.mark.parametrize("wording", [DEMO, *HELD_WORDINGS])
async def test_asked_what_baton_is_it_names_gateway_prefill_decode_and_pages(mesh: GatewayConfig, wording: str) -> None:
    answer = await said(mesh, wording)
    assert names_all(answer), answer


@in_one_loop
async def test_asked_something_else_it_does_not(mesh: GatewayConfig) -> None:
    assert not names_all(await said(mesh, "Count from 3 to 9."))


@in_one_loop
async def test_chat_holds_a_conversation_and_calls_its_tool(mesh: GatewayConfig) -> None:
    turns = ["My name is Ada.", "How many decode workers run?", "What is my name?"]
    where = ["--address", mesh.grpc_address, "--http", mesh.http_address]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "cli", "chat", *where, "--temperature", "0"),
        env=_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate("".join(f"{turn}\n" for turn in turns).encode()), 240)
    assert process.returncode == 0, err.decode()
    greeting, status, name = out.decode().splitlines()
    assert "Ada" in greeting and "2 decode workers" in status and "Ada" in name
    assert '{"tier": "decode", "workers": 2, "status": "ready"}' in " ".join(err.decode().split())


@in_one_loop
async def test_the_openai_sdk_runs_a_tool_to_its_answer(mesh: GatewayConfig) -> None:
    async with openai.AsyncOpenAI(base_url=f"http://{mesh.http_address}/v1", api_key="none") as client:
        messages: Any = [{"role": "user", "content": "How are the prefill workers?"}]
        asked: Any = {"model": "baton-tiny", "tools": [STATUS], "temperature": 0}
        first = (await client.chat.completions.create(messages=messages, **asked)).choices[0]
        assert (first.finish_reason, first.message.content) == ("tool_calls", None)
        (call,) = first.message.tool_calls or []
        assert call.type == "function"
        assert (call.function.name, json.loads(call.function.arguments)) == ("mesh_status", {"tier": "prefill"})
        result = {"tier": "prefill", "workers": 4, "status": "busy"}
        messages += [
            first.message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)},
        ]
        second = (await client.chat.completions.create(messages=messages, **asked)).choices[0]
    assert second.finish_reason == "stop"
    assert second.message.content == "4 prefill workers are busy."


def test_the_demo_says_what_baton_is_and_draws_the_time() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "cli", "demo"], env=_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    answer, *picture = done.stdout.splitlines()
    assert names_all(answer)
    guessed = re.search(r"(\d+) of (\d+) drafted tokens accepted", done.stderr)
    assert guessed is not None and int(guessed[1]) > 0, done.stderr
    for phase in ("request", "first token", "prefill", "hand-off", "decode"):
        assert any(phase in line for line in picture), phase


def _environment() -> dict[str, str]:
    path = os.pathsep.join(str(ROOT / name) for name in ("", "kernels", "protos"))
    clean = {key: value for key, value in os.environ.items() if not key.startswith("BATON_")}
    return clean | {"PYTHONPATH": path, "COLUMNS": "300", "NO_COLOR": "1"}


@in_one_loop
async def test_the_gateway_shows_the_metrics_of_every_process(mesh: GatewayConfig) -> None:
    await said(mesh, "Who are you?")
    workers = {("prefill-0", "prefill"), ("decode-0", "decode"), ("decode-1", "decode")}
    async with (
        httpx2.AsyncClient(base_url=f"http://{mesh.http_address}", timeout=None) as client,
        asyncio.timeout(START_SECONDS),
    ):
        while True:  # workers push once a second
            families = text_string_to_metric_families((await client.get("/metrics")).text)
            samples = [sample for family in families for sample in family.samples]
            ticking = {
                (sample.labels["worker"], sample.labels["tier"])
                for sample in samples
                if sample.name == "baton_event_loop_delay_seconds_count" and sample.value
            }
            if ticking == {*workers, ("gateway", "gateway")}:
                break
            await asyncio.sleep(0.2)
    drafted = [sample.value for sample in samples if sample.name == "vllm:spec_decode_num_draft_tokens_total"]
    computed = {
        sample.labels["worker"] for sample in samples if sample.name == "baton_step_rows_count" and sample.value
    }
    assert drafted[0] > 0 and "prefill-0" in computed and computed <= {name for name, _ in workers}


@in_one_loop
async def test_a_request_leaves_one_whole_trace_of_all_three_processes(mesh: GatewayConfig) -> None:
    address = mesh.http_address
    async with openai.AsyncOpenAI(base_url=f"http://{address}/v1", api_key="none", max_retries=0) as client:
        await client.chat.completions.create(
            model=mesh.model_name,
            messages=[{"role": "user", "content": "What is Baton?"}],
            max_tokens=40,
            extra_headers={"x-request-id": "traced"},
        )
    request: dict[str, Any] | None = None
    while request is None or not request["complete"]:
        await asyncio.sleep(0.05)
        request = await get_json(address, "/debug/requests/traced")
    spans = spans_of(request)
    assert orphans(spans) == [] and tiled_share(spans) >= 0.98, picture(spans)
    assert {span.service.rstrip("-01") for span in spans} == {"gateway", "prefill", "decode"}
    assert {"queue", "compute", "kv.send", "kv.receive", "generate"} <= {span.name for span in spans}
