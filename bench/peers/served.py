"""The same load through HTTP: sixteen clients on `baton up`, and on vLLM's own server.

Nothing of the mesh is set but `gateway.queue_seconds = 0`: vLLM refuses no request because of those before it, so Baton
refuses none either. Both run on all cores and one at a time has work. Prompts have 256 tokens and answers 64, each
drawn from half to one and a half times as many."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.child import child
from bench.peer import PeerLoad, take_turns
from bench.peers.engines import EngineFailed, Engines, last_lines
from bench.spread import Spread
from cli.connecting.health import speaks_http
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
    address = free_address()
    log, given = engines.tools / "vLLM-server.log", os.environ | engines.vllm_environment
    with log.open("wb") as out:
        command = engines.vllm_server(model, *address.rsplit(":", 1))
        async with child(*command, ends_by=signal.SIGTERM, stdout=out, stderr=out, env=given) as process:
            async with asyncio.timeout(READY_SECONDS):
                while not await speaks_http(address):
                    if process.returncode is not None:
                        raise EngineFailed(f"vLLM's server ended: {last_lines(log)}")
                    await asyncio.sleep(LOOK_SECONDS)
            yield f"http://{address}/v1"


async def compare_served(engines: Engines, model: Path, turns: int, path: str) -> dict[str, dict[str, list[float]]]:
    """Figures of each turn by server. Each turn has prompts of its own."""
    load, gentle = PeerLoad(ShapeName.CONCURRENT, REQUESTS, None), PeerLoad(ShapeName.CONCURRENT, WARM_REQUESTS, 2)
    async with (
        own_mesh({"model": str(model), "gateway.queue_seconds": "0", "worker.product_path": path}) as gateway,
        vllm_server(engines, model) as peer,
    ):
        urls = {"Baton": f"http://{gateway.http_address}/v1", "vLLM": peer}
        for url in urls.values():
            await gentle.figures(url, seed=turns)  # a server that has measured no step yet refuses a crowd
        taken = await take_turns(load, urls, turns)
    return {
        name: {ours: [each[theirs] for each in found] for ours, theirs in FIGURES.items()}
        for name, found in taken.items()
    }


def ratios(taken: dict[str, dict[str, list[float]]]) -> dict[str, Spread]:
    """Baton's figures beside the peer's in the same turn."""
    return {figure: Spread.ratio(taken["Baton"][figure], taken["vLLM"][figure]) for figure in FIGURES}
