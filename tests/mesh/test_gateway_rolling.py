"""One process after the other of a gateway leaves and comes back under load: no client notices."""

import asyncio
import json
import os
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import grpc
import httpx2 as httpx
import pytest

from cli.connecting.health import health
from cli.local_mesh.ports import free_address
from cli.local_mesh.running import running_mesh
from cli.local_mesh.services import services_of
from cli.local_mesh.supervisor import ProcessState, Supervisor
from engine.builtin import ensure_random
from mesh.config.common_config import default_cache_folder
from mesh.config.settings import read_settings
from tests.harness.client import MeshClient, TokenRequest
from tests.harness.plain_http import Counted, PlainClient

pytestmark = [pytest.mark.mesh, pytest.mark.chaos]
START_SECONDS = 120.0
PATH, FRESH_SECONDS, KEPT, STREAMS = "/v1/completions", 0.018, 6, 3
BODY: dict[str, Any] = {"model": "random", "prompt": "Once", "temperature": 0, "ignore_eos": True, "max_tokens": 1}
TOKENS = 60  # tokens of a stream
# How a call ends that arrives in the moment in which its server closes; none of it has begun.
SENT_AWAY = (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)


class Rolling:
    """A gateway of two processes, one decode worker, and clients of all kinds."""

    def __init__(self, supervisor: Supervisor, http: str, grpc: str, lines: list[str]) -> None:
        self.supervisor, self.http, self.grpc, self.lines = supervisor, http, grpc, lines
        self.fresh, self.kept, self.streams = Counted(), Counted(), Counted()
        self.calls = Counter[str]()
        self.on = True

    async def whole(self) -> None:
        """Returns when both processes serve and have the worker."""
        async with asyncio.timeout(START_SECONDS):
            while True:
                seen = await health(self.http)
                if seen is not None and (seen.get("decode"), seen.get("processes")) == (1, 2):
                    return
                await asyncio.sleep(0.05)

    def leave(self, number: int) -> None:
        process = self.supervisor.running[number].process
        assert process is not None
        process.send_signal(signal.SIGTERM)

    async def back(self, number: int, starts: int) -> None:
        """Returns when the process has ended by itself and its successor serves."""
        running = self.supervisor.running[number]
        async with asyncio.timeout(START_SECONDS):
            while running.starts == starts or running.state is not ProcessState.READY:
                await asyncio.sleep(0.02)
        await self.whole()

    async def counts(self) -> Counter[str]:
        """Requests that have ended, by the process that served them since it started."""
        async with httpx.AsyncClient(timeout=10) as client:
            text, found = (await client.get(f"http://{self.http}/metrics")).text, Counter[str]()
        for number, count in re.findall(r'baton_requests_total\{.*process="(\d)"\} (\d+)', text):
            found[number] += int(count)
        return found

    async def both_serve(self) -> None:
        """Returns when each process has served more than a few requests since its start."""
        counts = Counter[str]()
        with suppress(TimeoutError):
            async with asyncio.timeout(START_SECONDS):
                while min((counts := await self.counts())["0"], counts["1"]) <= 20:
                    await asyncio.sleep(0.2)
        assert min(counts["0"], counts["1"]) > 20, f"both serve: {counts}"

    # ---- clients

    async def open_fresh(self) -> None:
        """New connections, at more than 50 a second."""
        tasks, loop = set[asyncio.Task[Any]](), asyncio.get_running_loop()
        due = loop.time()

        async def one() -> None:
            client = PlainClient(self.http, self.fresh)
            await client.post(PATH, BODY)
            client.close()

        while self.on:
            tasks.add(asyncio.create_task(one()))
            due += FRESH_SECONDS
            await asyncio.sleep(due - loop.time())
        await asyncio.gather(*tasks)

    async def keep_alive(self, pause_seconds: float) -> None:
        client = PlainClient(self.http, self.kept)
        while self.on:
            await client.post(PATH, BODY)
            await asyncio.sleep(pause_seconds)
        client.close()

    async def stream(self) -> None:
        client = PlainClient(self.http, self.streams)
        while self.on:
            headers, content = await client.post(PATH, BODY | {"max_tokens": TOKENS, "stream": True})
            events = [line for line in content.decode().splitlines() if line.startswith("data: ")]
            if not headers or events[-1:] != ["data: [DONE]"] or '"length"' not in events[-2]:
                self.streams.counts["error incomplete"] += 1
        client.close()

    async def call(self) -> None:
        """A kept channel of gRPC, with running streams on it."""
        client = MeshClient(self.grpc)
        while self.on:
            count = 0
            try:
                async for each in client.deltas(TokenRequest("c", (1, 2, 3), TOKENS)):
                    count += len(each.token_ids)
                self.calls["whole" if count == TOKENS else "short"] += 1
            except grpc.aio.AioRpcError as error:
                unbegun = count == 0 and error.code() in SENT_AWAY
                self.calls["unbegun" if unbegun else f"{error.code().name} after {count}: {error.details()}"] += 1
        await client.aclose()


@asynccontextmanager
async def rolling(**settings: str) -> AsyncIterator[Rolling]:
    folder: Path = await asyncio.to_thread(ensure_random, default_cache_folder())
    base = int(free_address().rpartition(":")[2])
    overrides = {
        "model": str(folder),
        "served_name": "random",
        "gateway.processes": "2",
        "gateway.http_address": free_address(),
        "gateway.grpc_address": free_address(),
        "gateway.worker_address": f"127.0.0.1:{base if base < 65000 else base - 1000}",
        "gateway.queue_seconds": "0",
        "mesh.prefill_workers": "0",
        "mesh.decode_workers": "1",
        "worker.threads": "1",
    } | settings
    mesh = read_settings(None, os.environ, overrides).mesh()
    services, lines = services_of(mesh, file=None, overrides=overrides, otlp_endpoint=""), list[str]()
    async with running_mesh(mesh, services, lambda name, line: lines.append(f"{name} {line}"), START_SECONDS) as all_:
        found = Rolling(all_, mesh.gateway.http_address, mesh.gateway.grpc_address, lines)
        await found.whole()
        yield found


async def test_processes_that_leave_one_by_one_under_load_cost_no_client_anything() -> None:
    async with rolling() as mesh:
        clients = [mesh.open_fresh(), *(mesh.keep_alive(0.05) for _ in range(KEPT)), mesh.keep_alive(2.0)]
        clients += [mesh.stream() for _ in range(STREAMS)]
        load = asyncio.gather(*clients)
        await mesh.both_serve()
        pages = list[int]()
        for number in (0, 1, 0):
            starts = mesh.supervisor.running[number].starts
            mesh.leave(number)
            while mesh.supervisor.running[number].starts == starts:
                found = await health(mesh.http)
                assert found is not None and found["status"] == "ok", found
                pages.append(found["processes"])
                await asyncio.sleep(0.05)
            await mesh.back(number, starts)
            await mesh.both_serve()
        mesh.on = False
        await load
        lines = mesh.lines.copy()
    assert not (mesh.fresh.failed | mesh.kept.failed | mesh.streams.failed), (mesh.fresh, mesh.kept, mesh.streams)
    assert mesh.fresh.counts["200"] > 300 and mesh.kept.counts["closed"] >= 3 and mesh.streams.counts["200"] > 20
    assert 1 in pages and 2 in pages, "a process that has left is no part of the gateway, one that leaves is"
    assert sum("ended (status 0)" in line for line in lines) == 3
    assert sum("in place of gateway processes that leave" in line for line in lines) == 3


async def test_processes_that_leave_together_refuse_with_the_reason() -> None:
    """Negative control: clients get 503 from a process that leaves when no other process takes its listener."""
    async with rolling(**{"gateway.drain_seconds": "3"}) as mesh:
        refused = list[tuple[dict[str, str], bytes]]()
        async with asyncio.timeout(START_SECONDS):
            while not refused:  # on a busy machine both may have left before a client comes
                await mesh.whole()
                busy = PlainClient(mesh.http, mesh.streams)
                answering = asyncio.create_task(busy.post(PATH, BODY | {"max_tokens": 4000}))
                await asyncio.sleep(0.5)
                for number in (0, 1):
                    mesh.leave(number)
                while not refused and not answering.done():
                    client = PlainClient(mesh.http, mesh.fresh)
                    with suppress(TimeoutError), closing(client):  # a request that has a place at a busy worker waits
                        async with asyncio.timeout(1):
                            headers, content = await client.post(PATH, BODY)
                        if headers.get("status") == "503":
                            refused.append((headers, content))
                await answering
                busy.close()
    headers, content = refused[0]
    assert headers["x-should-retry"] == "true" and "shuts down" in json.loads(content)["error"]["message"]


async def test_calls_over_grpc_go_on_and_later_ones_reach_another_process() -> None:
    async with rolling() as mesh:
        load = asyncio.gather(*(mesh.call() for _ in range(6)))
        await asyncio.sleep(1.5)
        for number in (0, 1):
            starts = mesh.supervisor.running[number].starts
            mesh.leave(number)
            await mesh.back(number, starts)
        await asyncio.sleep(1)
        mesh.on = False
        await load
    whole = mesh.calls["whole"]
    assert whole > 12 and mesh.calls["unbegun"] <= max(2, whole // 20), mesh.calls
    assert not set(mesh.calls) - {"whole", "unbegun"}, mesh.calls
