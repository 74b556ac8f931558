"""A mesh of the product's own services in one event loop: real engine, real gRPC, real shared memory, real pages.

Only the processes are missing: the fixture opens what a service's `main` opens, so that a test can read the plans of a
worker and end it at any moment."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from decode_svc import main as decode_main
from decode_svc.speculation.draft_length import DraftLengths
from decode_svc.worker import DecodeWorker
from engine.builtin.model import tiny
from gateway.attaching.served_models import ServedModels
from gateway.attaching.service import Gateway
from gateway.core.interface import ChoiceRequest, TokenStream
from gateway.routing.router import Local
from gateway.sequencing.observer import UNOBSERVED, RequestObserver
from mesh.config.worker_config import DecodeConfig, PrefillConfig
from mesh.messages.jobs import Sampling, Token
from mesh.network.grpc_network import GrpcNetwork
from mesh.rules import RULES, Rules
from mesh.sessions.serving import run_together
from prefill_svc import main as prefill_main
from prefill_svc.worker import PrefillWorker

PATIENCE_SECONDS = 120.0  # a guard against hanging: no test depends on how fast the machine is


@dataclass
class RunningRequest:
    handle: TokenStream
    tokens: list[Token] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)  # the handle's class after each token
    task: "asyncio.Task[None] | None" = None

    async def listen(self) -> None:
        async for token in self.handle.events():
            self.tokens.append(token)
            self.classes.append(self.handle.numerics)

    @property
    def text(self) -> list[int]:
        return [token.token for token in self.tokens]


@dataclass
class RealMesh:
    folder: Path
    model: Path
    gateway: Gateway
    address: str
    prefills: list[PrefillWorker] = field(default_factory=list)
    decodes: list[DecodeWorker] = field(default_factory=list)
    running: dict[int, "asyncio.Task[None]"] = field(default_factory=dict)  # by the worker's id()

    async def add(self, tier: str, *, pace: DraftLengths | None = None, **settings: Any) -> Any:
        defaults = {"page_tokens": 16, "pool_pages": 512, "threads": 1, "chunk_tokens": 64}
        common = {
            "model": self.model,
            "cache_folder": self.folder,
            "gateways": (self.address,),
            "served_name": ("tiny",),
        }
        started: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        async def run() -> None:
            opened: AbstractAsyncContextManager[PrefillWorker | DecodeWorker]
            if tier == "prefill":
                opened = prefill_main.open_worker(
                    PrefillConfig(**{**common, **defaults, **settings}), ends_process=False
                )
            else:
                mine = {**common, **defaults, "may_kill": False, **settings}  # it would kill this very process
                opened = decode_main.open_worker(DecodeConfig(**mine), draft_lengths=pace, ends_process=False)
            async with opened as worker:
                worker.plans = []
                started.set_result(worker)
                await run_together(worker.run(), worker.attachments.register(), worker.measure())

        task = asyncio.ensure_future(run())
        await asyncio.wait([task, started], return_when=asyncio.FIRST_COMPLETED)
        worker = started.result() if started.done() else await task
        self.running[id(worker)] = task
        (self.prefills if tier == "prefill" else self.decodes).append(worker)
        await self.until(lambda: len(self.gateway.workers) == len(self.running))
        return worker

    async def end(self, worker: PrefillWorker | DecodeWorker) -> None:
        task = self.running.pop(id(worker))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def ask(
        self, prompt: tuple[int, ...], max_tokens: int = 8, sampling: Sampling | None = None, **more: Any
    ) -> RunningRequest:
        spec = ChoiceRequest("r", "tiny", prompt, (), sampling or Sampling(max_tokens=max_tokens), **more)
        running = RunningRequest(self.gateway.submit(spec))
        running.task = asyncio.ensure_future(running.listen())
        return running

    async def until(self, what: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
        async with asyncio.timeout(seconds):
            while not what():
                for task in self.running.values():
                    if task.done():
                        task.result()  # a worker failed
                await asyncio.sleep(0.0005)


@pytest.fixture
def real_mesh(tmp_path: Path) -> Callable[..., AbstractAsyncContextManager[RealMesh]]:
    @asynccontextmanager
    async def start(
        *,
        local: Local = Local.NEVER,
        dtype: str = "bf16",
        observer: RequestObserver = UNOBSERVED,
        served: str | ServedModels = "tiny",
        rules: Rules = RULES,  # the gateway's rules
    ) -> AsyncIterator[RealMesh]:
        model = tiny(tmp_path / "model", "llama3", dtype=dtype, context=8192)
        network = GrpcNetwork(setting="gateway.worker_address")
        gateway = Gateway(network, random=Random(1), model=served, local=local, observer=observer, rules=rules)
        listening = await gateway.listen("127.0.0.1:0")
        mesh = RealMesh(tmp_path, model, gateway, listening.address)
        try:
            yield mesh
        finally:
            for worker in [*mesh.decodes, *mesh.prefills]:
                if id(worker) in mesh.running:
                    await mesh.end(worker)
            await gateway.aclose()
            await listening.close()

    return start
