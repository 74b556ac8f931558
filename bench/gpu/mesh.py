"""Section `mesh`: an 8B shape served by two processes on one GPU, through the gateway, pages by CUDA IPC.

Each request's trace shows how much of a 4,096-token hand-off is hidden behind prefill. Then many requests come at once.
When the mesh has stopped, transformers' continuous batching answers the same requests with the same model."""

import asyncio
import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter

import grpc
import torch

from baton.inference.v1 import inference_pb2, inference_pb2_grpc
from bench.gpu import room
from bench.gpu.clock import Clock
from bench.gpu.figures import Figure, a_peers, note, show
from bench.gpu.random_model import DRY, LLAMA_8B, as_folder
from bench.handoff_mesh import measure as of_trace
from bench.handoff_mesh import needed_spans
from cli.local_mesh.own_mesh import own_mesh

POOL_BYTES = 12 * 2**30
HANDOFF_TOKENS, HANDOFFS = 4096, 7
CLIENTS, PROMPT_TOKENS, ANSWER_TOKENS = 64, 256, 128
PEER_SECONDS = 110.0


def measure(clock: Clock) -> None:
    with tempfile.TemporaryDirectory(prefix="baton-mesh-", dir=room.folder()) as made:
        folder, began = Path(made), perf_counter()
        model = as_folder(LLAMA_8B if clock.real else DRY, folder / "model", clock.device)
        show(Figure("the model as a folder", perf_counter() - began, "s"))
        if clock.real:
            torch.cuda.empty_cache()
        load = ClientLoad(CLIENTS, PROMPT_TOKENS, ANSWER_TOKENS) if clock.real else ClientLoad(2, 8, 3)
        measured = asyncio.run(_serve(model, folder / "cache", load, device="cuda" if clock.real else "cpu"))
        show(Figure("output tokens through the gateway", measured, f"tokens/s, {load.clients} clients"))
        if not clock.real:
            return note("transformers' continuous batching was left out: it wants a GPU")
        with a_peers("transformers' continuous batching"):
            theirs, attention = _transformers(model, load, clock.device)
            show(Figure("output tokens, transformers", theirs, f"tokens/s, attention {attention}"))
            show(Figure("end to end", measured / theirs, "times transformers' continuous batching", at_least=3.0))


@dataclass(frozen=True, slots=True)
class ClientLoad:
    clients: int
    prompt_tokens: int
    answer_tokens: int

    def prompts(self) -> list[list[int]]:
        draw = Random(3)
        return [[draw.randrange(256) for _ in range(self.prompt_tokens)] for _ in range(self.clients)]


class GpuMeshClient:
    def __init__(self, stub: inference_pb2_grpc.InferenceServiceStub, http_address: str) -> None:
        self._stub, self._http_address = stub, http_address

    async def answer(self, tokens: Sequence[int], count: int, request_id: str = "") -> int:
        """Sends one prompt and returns how many tokens the answer has."""
        request = inference_pb2.GenerateRequest(token_ids=inference_pb2.TokenIds(ids=tokens))
        request.sampling.temperature = 0
        request.stop.max_tokens, request.stop.ignore_eos = count, True
        reply = await self._stub.Generate(request, metadata=(("x-request-id", request_id),) if request_id else ())
        return int(reply.finished.usage.completion_tokens)

    async def handoff(self, length: int) -> tuple[float, float]:
        """Sends one prompt that no cache knows; returns its hand-off's (hidden share, exposed milliseconds)."""
        request_id = secrets.token_hex(16)
        await self.answer(list(secrets.token_bytes(length)), 2, request_id)
        run = of_trace(await needed_spans(self._http_address, request_id), 0.0)
        return run.hidden_share, run.exposed_ms


@asynccontextmanager
async def _running(model: Path, cache: Path, device: str) -> AsyncIterator[GpuMeshClient]:
    said = {
        "model": str(model),
        "cache_folder": str(cache),
        "gateway.local": "never",
        "worker.device": device,
        "worker.page_tokens": "16",
        "worker.pool_bytes": str(POOL_BYTES if device == "cuda" else 1 << 24),
        "worker.chunk_tokens": "1024" if device == "cuda" else "64",
        "prefill.step_tokens": "2048" if device == "cuda" else "64",
        "mesh.prefill_workers": "1",
        "mesh.decode_workers": "1",
    }
    async with own_mesh(said, on_line=lambda name, line: print(f"{name}: {line}", file=sys.stderr)) as gateway:
        async with grpc.aio.insecure_channel(gateway.grpc_address) as channel:
            yield GpuMeshClient(inference_pb2_grpc.InferenceServiceStub(channel), gateway.http_address)


async def _serve(model: Path, cache: Path, load: ClientLoad, *, device: str) -> float:
    """Serves the model in a mesh; returns output tokens per second under load."""
    real = device == "cuda"
    began = perf_counter()
    async with _running(model, cache, device) as mesh:
        show(Figure("start of gateway, prefill and decode", perf_counter() - began, "s"))
        length = HANDOFF_TOKENS if real else 40
        for _ in range(2):
            await mesh.handoff(length)
        runs = [await mesh.handoff(length) for _ in range(HANDOFFS if real else 2)]
        hidden, exposed = median(share for share, _ in runs), median(ms for _, ms in runs)
        show(Figure(f"hand-off of {length} tokens, hidden", hidden, "of its bytes", at_least=0.9 if real else None))
        show(Figure(f"hand-off of {length} tokens, exposed", exposed, "ms", at_most=10.0 if real else None))
        prompts = load.prompts()
        await asyncio.gather(*(mesh.answer(one[::-1], load.answer_tokens) for one in prompts))  # graphs, compilation
        began = perf_counter()
        counts = await asyncio.gather(*(mesh.answer(one, load.answer_tokens) for one in prompts))
        seconds = perf_counter() - began
    if sum(counts) != load.clients * load.answer_tokens:
        note(f"{sum(counts)} tokens came, {load.clients * load.answer_tokens} were requested")
    return sum(counts) / seconds


def _transformers(model: Path, load: ClientLoad, device: torch.device) -> tuple[float, str]:
    """Tokens per second of transformers, and its kind of attention. It runs in a process of its own, because it may
    hang or take the device down."""
    order = json.dumps(
        {"model": str(model), "device": str(device), "prompts": load.prompts(), "count": load.answer_tokens}
    )
    command = [sys.executable, "-m", "bench.gpu.transformers_peer"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}  # otherwise it looks for kernels on the network
    done = subprocess.run(
        command, input=order, capture_output=True, text=True, timeout=PEER_SECONDS, check=False, env=environment
    )
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["it printed nothing"])[-1])
    said = json.loads(done.stdout.splitlines()[-1])
    return float(said["tokens_per_second"]), str(said["attention"])
