"""A gateway of several processes: real processes share the ports of clients, and one that dies is started again."""

import asyncio
import json
import os
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import pytest_asyncio

from baton.client import Client
from cli.connecting.health import health
from cli.local_mesh.ports import free_address
from cli.local_mesh.running import running_mesh
from cli.local_mesh.services import services_of
from cli.local_mesh.supervisor import ProcessState, Supervisor
from engine.builtin import ensure_random
from mesh.config.common_config import default_cache_folder
from mesh.config.settings import read_settings
from tests.harness.waiting import within

pytestmark = pytest.mark.mesh
in_one_loop = pytest.mark.asyncio(loop_scope="module")
START_SECONDS = 120.0
BATCH = 48  # requests: enough that a process dies in the middle of them
BODY: dict[str, Any] = {"model": "random", "prompt": "Once upon a time", "temperature": 0, "ignore_eos": True}


class Processes:
    """Two gateway processes, one worker of each tier."""

    def __init__(self, supervisor: Supervisor, http: str, grpc: str, lines: list[str]) -> None:
        self.supervisor, self.http, self.grpc, self.lines = supervisor, http, grpc, lines

    def kill(self, number: int) -> None:
        process = self.supervisor.running[number].process
        assert process is not None
        process.send_signal(signal.SIGKILL)

    async def whole(self) -> None:
        """Returns when both processes serve and have all workers."""
        async with asyncio.timeout(START_SECONDS):
            while (seen := await health(self.http)) is None or (
                seen != {"status": "ok", "prefill": 1, "decode": 1, "processes": 2}
            ):
                await asyncio.sleep(0.05)

    async def counts(self) -> Counter[str]:
        """Requests that have ended, by the process that served them."""
        async with httpx.AsyncClient(timeout=None) as client:
            text = (await client.get(f"http://{self.http}/metrics")).text
        found = Counter[str]()
        for number, count in re.findall(r'baton_requests_total\{.*process="(\d)"\} (\d+)', text):
            found[number] += int(count)
        return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Processes]:
    folder: Path = await asyncio.to_thread(ensure_random, default_cache_folder())
    base = int(free_address().rpartition(":")[2])
    overrides = {
        "model": str(folder),
        "served_name": "random",
        "gateway.processes": "2",
        "gateway.files_folder": str(tmp_path_factory.mktemp("files")),
        "gateway.http_address": free_address(),
        "gateway.grpc_address": free_address(),
        "gateway.worker_address": f"127.0.0.1:{base if base < 65000 else base - 1000}",
        "mesh.prefill_workers": "1",
        "mesh.decode_workers": "1",
    }
    mesh = read_settings(None, os.environ, overrides).mesh()
    services, lines = services_of(mesh, file=None, overrides=overrides, otlp_endpoint=""), list[str]()
    async with running_mesh(mesh, services, lambda name, line: lines.append(f"{name} {line}"), START_SECONDS) as all_:
        yield Processes(all_, mesh.gateway.http_address, mesh.gateway.grpc_address, lines)


async def complete(http: str, **more: Any) -> str:
    """The text of one answer over a connection of its own."""
    async with httpx.AsyncClient(timeout=None) as client:
        answer = await client.post(f"http://{http}/v1/completions", json=BODY | {"max_tokens": 4} | more, timeout=60)
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["text"]
    return text


@in_one_loop
async def test_connections_land_on_all_processes_and_answers_are_equal(gateway: Processes) -> None:
    await gateway.whole()
    before = await gateway.counts()
    texts = set[str]()
    async with asyncio.timeout(60):
        while len(gateway_grew := (await gateway.counts()) - before) < 2:
            texts |= set(await asyncio.gather(*(complete(gateway.http) for _ in range(4))))
    assert len(texts) == 1 and set(gateway_grew) == {"0", "1"}
    async with Client(gateway.grpc) as client:
        grpc_text = await client.generate_text(BODY["prompt"], max_tokens=4, temperature=0.0, timeout_seconds=60)
    assert texts == {grpc_text}


@in_one_loop
async def test_a_request_is_found_whichever_process_served_it(gateway: Processes) -> None:
    await gateway.whole()
    names = [f"find-me-{number}" for number in range(6)]
    await asyncio.gather(*(complete(gateway.http, request_id=name) for name in names))
    async with httpx.AsyncClient(timeout=None) as client:
        for name in names:
            found = await client.get(f"http://{gateway.http}/debug/requests/{name}")
            assert found.status_code == 200 and found.json()["request_id"] == name


@in_one_loop
async def test_a_process_that_is_killed_costs_its_own_streams_only_and_comes_back(gateway: Processes) -> None:
    await gateway.whole()
    ends = list[bool]()

    async def stream(client: httpx.AsyncClient, counter: list[int]) -> None:
        """Reads an answer to its end; notes whether it was whole."""
        done = False
        try:
            body = BODY | {"max_tokens": 300, "stream": True}
            async with client.stream("POST", f"http://{gateway.http}/v1/completions", json=body, timeout=60) as answer:
                async for line in answer.aiter_lines():
                    done = done or line == "data: [DONE]"
                    if line.startswith("data: {"):
                        counter[0] += 1
        except httpx.HTTPError:
            pass
        ends.append(done)

    clients, counters = [httpx.AsyncClient(timeout=None) for _ in range(12)], [[0] for _ in range(12)]
    reading = [asyncio.ensure_future(stream(*pair)) for pair in zip(clients, counters, strict=True)]
    await within(60, lambda: all(counter[0] for counter in counters))
    gateway.kill(1)
    await asyncio.gather(*reading)
    assert 0 < sum(ends) < len(ends), "the other process's streams went on to their end"
    assert await complete(gateway.http), "new connections are served at once"
    await gateway.whole()
    assert all(running.state is ProcessState.READY for running in gateway.supervisor.running)
    assert any("gateway-1 ended (signal 9)" in line for line in gateway.lines)
    for client in clients:
        await client.aclose()


@in_one_loop
async def test_pages_tell_one_gateway(gateway: Processes) -> None:
    await gateway.whole()
    for _ in range(14):  # each over a connection of its own
        async with httpx.AsyncClient(timeout=None) as client:
            await client.post(f"http://{gateway.http}/v1/completions", json=BODY | {"max_tokens": 1}, timeout=60)
    async with httpx.AsyncClient(timeout=None) as client:
        load = (await client.get(f"http://{gateway.http}/load")).json()
        assert load == {"server_load": 0, "running": 0, "waiting": 0}
        text = (await client.get(f"http://{gateway.http}/metrics")).text
        latest = json.loads((await client.get(f"http://{gateway.http}/debug/requests?limit=512")).content)
    assert 'baton_workers_attached{tier="decode"} 1\n' in text
    assert text.count("# TYPE baton_requests_total counter") == 1
    assert 'worker="gateway-0"' in text and 'worker="gateway-1"' in text
    assert text.count('baton_pages{worker="decode-0",tier="decode",state="free"}') == 1
    times = [each["started_at"] for each in latest["requests"]]
    assert times == sorted(times, reverse=True) and len(times) > 12


@in_one_loop
async def test_a_process_that_is_killed_in_the_middle_of_a_batch_costs_no_outcome(gateway: Processes) -> None:
    await gateway.whole()
    body = BODY | {"max_tokens": 256}
    entries = [
        {"custom_id": f"r-{number}", "method": "POST", "url": "/v1/completions", "body": body}
        for number in range(BATCH)
    ]
    content = b"".join(json.dumps(each).encode() + b"\n" for each in entries)

    async def call(method: str, path: str, **more: Any) -> httpx.Response:
        """Over a connection of its own; a process that was killed may have taken it."""
        async with asyncio.timeout(START_SECONDS):
            while True:
                try:
                    async with httpx.AsyncClient(timeout=10) as client:
                        answer = await client.request(method, f"http://{gateway.http}/v1{path}", **more)
                    assert answer.status_code == 200, answer.text
                    return answer
                except httpx.TransportError:
                    await asyncio.sleep(0.05)

    file = (await call("POST", "/files", files={"file": ("in.jsonl", content)}, data={"purpose": "batch"})).json()
    before = await gateway.counts()
    wanted = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    batch = (await call("POST", "/batches", json=wanted)).json()
    async with asyncio.timeout(START_SECONDS):
        while sum((grown := await gateway.counts() - before).values()) < BATCH // 4:
            await asyncio.sleep(0.05)
    gateway.kill(int(max(grown, key=lambda number: grown[number])))
    batch = (await call("GET", f"/batches/{batch['id']}")).json()
    assert batch["status"] == "in_progress", "the batch is too small for this machine"
    async with asyncio.timeout(START_SECONDS):
        while batch["status"] == "in_progress":
            await asyncio.sleep(0.1)
            batch = (await call("GET", f"/batches/{batch['id']}")).json()
    lines = (await call("GET", f"/files/{batch['output_file_id']}/content")).text.splitlines()
    assert batch["status"] == "completed" and batch["request_counts"] == {
        "total": BATCH,
        "completed": BATCH,
        "failed": 0,
    }
    assert sorted(json.loads(line)["custom_id"] for line in lines) == sorted(f"r-{number}" for number in range(BATCH))
    assert len({json.loads(line)["response"]["body"]["choices"][0]["text"] for line in lines}) == 1
