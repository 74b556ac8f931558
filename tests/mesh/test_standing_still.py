"""A process of `baton up` that is stopped as a whole: its requests go on elsewhere, it is named meanwhile, and its
supervisor replaces it."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2 as httpx
import pytest

from cli.connecting.health import get_json, health
from cli.local_mesh.ports import free_address
from cli.local_mesh.running import running_mesh
from cli.local_mesh.services import services_of
from cli.local_mesh.signs_of_life import LifeJudge
from cli.local_mesh.supervisor import ProcessState, Running, Supervisor
from engine.builtin import ensure_random
from mesh.config.common_config import default_cache_folder
from mesh.config.settings import read_settings
from mesh.rules import RULES
from tests.harness.waiting import within

pytestmark = [pytest.mark.mesh, pytest.mark.chaos, pytest.mark.timeout(300)]

START_SECONDS = 120.0
BODY: dict[str, Any] = {"model": "random", "prompt": "Once upon a time", "temperature": 0, "ignore_eos": True}
LONG = BODY | {"max_tokens": 1500, "return_token_ids": True}


class UpMesh:
    """The processes that `baton up` keeps running, with two workers of each tier unless a test says otherwise."""

    def __init__(self, supervisor: Supervisor, http: str, lines: list[str]) -> None:
        self.supervisor, self.http, self.lines = supervisor, http, lines

    def service(self, name: str) -> Running:
        return next(running for running in self.supervisor.running if running.service.name == name)

    def stop(self, name: str) -> None:
        process = self.service(name).process
        assert process is not None
        process.send_signal(signal.SIGSTOP)

    async def until(self, what: Callable[[], Any], seconds: float) -> None:
        await within(seconds, lambda: what())

    async def replaced(self, name: str) -> float:
        """The seconds until another process of the service has begun; then it serves."""
        loop, running = asyncio.get_running_loop(), self.service(name)
        begun, before = loop.time(), running.starts
        await self.until(lambda: running.starts > before, RULES.lease_seconds + 60.0)
        seconds = loop.time() - begun
        await self.until(lambda: running.state is ProcessState.READY, START_SECONDS)
        return seconds

    async def health_until(self, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        async with asyncio.timeout(START_SECONDS):
            while (seen := await health(self.http)) is None or not fits(seen):
                await asyncio.sleep(0.1)
        return seen

    async def ask(self, begun: asyncio.Event | None = None) -> list[int]:
        """The tokens of one long answer."""
        tokens = list[int]()
        async with httpx.AsyncClient(timeout=START_SECONDS) as client:
            async with client.stream("POST", f"http://{self.http}/v1/completions", json=LONG | {"stream": True}) as got:
                async for line in got.aiter_lines():
                    if line.startswith("data: {"):
                        data = json.loads(line[6:])
                        assert "error" not in data, data
                        tokens += [token for choice in data["choices"] for token in choice.get("token_ids", ())]
                        if begun is not None and len(tokens) > 8:
                            begun.set()
        return tokens

    async def worker_of_the_only_request(self, tier: str) -> str:
        async with asyncio.timeout(START_SECONDS):
            while True:
                state = await get_json(self.http, "/ui/state")
                assert state is not None
                for request in state["requests"]:
                    for worker in state["workers"]:
                        if worker["id"] == request[tier]:
                            return str(worker["name"])
                await asyncio.sleep(0.02)


@asynccontextmanager
async def up_mesh(**more: str) -> AsyncIterator[UpMesh]:
    folder = await asyncio.to_thread(ensure_random, default_cache_folder())
    base = int(free_address().rpartition(":")[2])
    overrides = {
        "model": str(folder),
        "served_name": "random",
        "gateway.http_address": free_address(),
        "gateway.grpc_address": free_address(),
        "gateway.worker_address": f"127.0.0.1:{base if base < 65000 else base - 1000}",
        "gateway.local": "never",
        "mesh.prefill_workers": "2",
        "mesh.decode_workers": "2",
        "worker.threads": "1",
    } | {key.replace("__", "."): value for key, value in more.items()}
    mesh = read_settings(None, os.environ, overrides).mesh()
    services, lines = services_of(mesh, file=None, overrides=overrides, otlp_endpoint=""), list[str]()
    async with running_mesh(mesh, services, lambda name, line: lines.append(f"{name} {line}"), START_SECONDS) as all_:
        yield UpMesh(all_, mesh.gateway.http_address, lines)


async def test_stopped_workers_lose_no_token_are_named_and_are_replaced() -> None:
    async with up_mesh() as mesh:
        expected = await mesh.ask()
        begun = asyncio.Event()
        answer = asyncio.create_task(mesh.ask(begun))
        await begun.wait()
        stopped = await mesh.worker_of_the_only_request("decode")
        mesh.stop(stopped)
        replaced = asyncio.create_task(mesh.replaced(stopped))
        seen = await mesh.health_until(lambda seen: bool(seen.get("silent_workers")))
        (silent,) = seen["silent_workers"]
        assert (silent["name"], silent["tier"], seen["status"]) == (stopped, "decode", "ok")
        assert f'baton_worker_silent_seconds{{worker="{stopped}",tier="decode"}} ' in await metrics(mesh.http)
        seen = await mesh.health_until(lambda seen: seen["decode"] == 1)
        assert [(each["name"], each["attached"]) for each in seen["silent_workers"]] == [(stopped, False)]
        state = await get_json(mesh.http, "/ui/state")
        assert state is not None and [each["name"] for each in state["silent"]] == [stopped]
        assert await answer == expected
        assert await replaced <= RULES.lease_seconds + 5.0
        seen = await mesh.health_until(lambda seen: seen["decode"] == 2)
        assert "silent_workers" not in seen

        mesh.stop("prefill-0")
        replaced = asyncio.create_task(mesh.replaced("prefill-0"))
        seen = await mesh.health_until(lambda seen: seen["prefill"] == 1)
        assert [each["name"] for each in seen["silent_workers"]] == ["prefill-0"]
        assert await mesh.ask() == expected
        assert await replaced <= RULES.lease_seconds + 5.0
        await mesh.health_until(lambda seen: seen["prefill"] == 2)

        mesh.stop("gateway")
        assert await mesh.replaced("gateway") <= RULES.lease_seconds + 5.0
        await mesh.health_until(lambda seen: (seen["prefill"], seen["decode"]) == (2, 2))
        assert await mesh.ask() == expected
        killed = [line for line in mesh.lines if "has stood still for" in line]
        assert [line.split()[0] for line in killed] == [stopped, "prefill-0", "gateway"], killed


async def test_a_stopped_process_of_a_gateway_with_two_is_named_and_replaced() -> None:
    async with up_mesh(gateway__processes="2", mesh__prefill_workers="1", mesh__decode_workers="1") as mesh:
        mesh.stop("gateway-1")
        replaced = asyncio.create_task(mesh.replaced("gateway-1"))
        seen = await mesh.health_until(lambda seen: "silent_processes" in seen)
        assert (seen["status"], seen["processes"], seen["silent_processes"]) == ("ok", 1, [1])
        assert await replaced <= RULES.lease_seconds + 5.0
        whole = {"status": "ok", "prefill": 1, "decode": 1, "processes": 2}
        await mesh.health_until(lambda seen: seen == whole)


async def test_without_the_judge_a_stopped_worker_stays_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the gateway goes on without it, and nobody replaces it."""
    look = LifeJudge.look
    monkeypatch.setattr(LifeJudge, "look", lambda *given: look(*given) and [])
    async with up_mesh(mesh__prefill_workers="1") as mesh:
        mesh.stop("decode-0")
        await asyncio.sleep(RULES.lease_seconds + 6.0)
        running = mesh.service("decode-0")
        assert running.starts == 1 and running.process is not None and running.process.returncode is None
        seen = await mesh.health_until(lambda seen: seen["decode"] == 1)
        assert [(each["name"], each["attached"]) for each in seen["silent_workers"]] == [("decode-0", False)]
        running.process.send_signal(signal.SIGCONT)
        await mesh.health_until(lambda seen: seen["decode"] == 2 and "silent_workers" not in seen)


async def metrics(http: str) -> str:
    async with httpx.AsyncClient(timeout=None) as client:
        return (await client.get(f"http://{http}/metrics")).text
