"""The same load through HTTP: sixteen clients on `baton up`, and on vLLM's own server.

Nothing of the mesh is set but `gateway.queue_seconds = 0`: vLLM refuses no request because of those before it, so Baton
refuses none either. Both run on all cores and one at a time has work. Prompts have 256 tokens and answers 64, each
drawn from half to one and a half times as many."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median

from bench.handoff import say
from bench.peer import PeerLoad
from bench.peers.engines import EngineFailed, Engines
from bench.spread import Spread
from cli.load.shapes import ShapeName
from cli.local_mesh.own_mesh import own_mesh
from cli.local_mesh.ports import free_address

POINT = "http_16"
REQUESTS, WARM_REQUESTS = 48, 12
READY_SECONDS, LOOK_SECONDS = 600.0, 1.0
FIGURES = {"tokens_per_second": "output_tokens_per_second", "ttft_p99": "ttft_p99_ms", "itl_p99": "itl_p99_ms"}


@asynccontextmanager
async def vllm_server(engines: Engines, model: Path) -> AsyncIterator[str]:
    """Base URL of its OpenAI API, once it answers."""
    host, port = free_address().rsplit(":", 1)
    log = engines.tools / "vLLM-server.log"
    with log.open("wb") as written:
        process = await asyncio.create_subprocess_exec(
            *engines.vllm_server(model, host, port),
            stdout=written,
            stderr=written,
            env=os.environ | engines.vllm_environment,
        )
        try:
            async with asyncio.timeout(READY_SECONDS):
                while not await _answers(host, int(port)):
                    if process.returncode is not None:
                        end = log.read_text(errors="replace").strip().splitlines()[-3:]
                        raise EngineFailed(f"vLLM's server ended: {' | '.join(end)}")
                    await asyncio.sleep(LOOK_SECONDS)
            yield f"http://{host}:{port}/v1"
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()


async def _answers(host: str, port: int) -> bool:
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.write(f"GET /health HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    line = await reader.readline()
    writer.close()
    return b" 200 " in line


async def compare_served(
    engines: Engines, model: Path, precision: str, turns: int
) -> dict[str, dict[str, list[float]]]:
    """Figures of each turn by server. Each turn has prompts of its own."""
    load, gentle = PeerLoad(ShapeName.CONCURRENT, REQUESTS, None), PeerLoad(ShapeName.CONCURRENT, WARM_REQUESTS, 2)
    taken: dict[str, dict[str, list[float]]] = {name: {each: [] for each in FIGURES} for name in ("Baton", "vLLM")}
    async with (
        own_mesh({"model": str(model), "gateway.queue_seconds": "0"}) as gateway,
        vllm_server(engines, model) as peer,
    ):
        urls = {"Baton": f"http://{gateway.http_address}/v1", "vLLM": peer}
        for name in urls:
            await gentle.figures(urls[name], seed=turns)  # a server that has measured no step yet refuses a crowd
        for number in range(turns):
            for name in list(urls) if number % 2 == 0 else reversed(urls):
                found = await load.figures(urls[name], seed=number)
                for ours, theirs in FIGURES.items():
                    taken[name][ours].append(found[theirs])
    for name, figures in taken.items():
        told = ", ".join(f"{figure} {median(values):.0f}" for figure, values in figures.items())
        say(f"{POINT:13} {precision:5} {name:20} {told}")
    return taken


def ratios(taken: dict[str, dict[str, list[float]]]) -> dict[str, Spread]:
    """Baton's figures beside the peer's in the same turn."""
    return {
        figure: Spread.of([mine / its for mine, its in zip(taken["Baton"][figure], taken["vLLM"][figure], strict=True)])
        for figure in FIGURES
    }
