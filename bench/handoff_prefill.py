"""The prefill worker of `bench.handoff`: the product's own, in the same process as "the engine alone".

A command over a Unix socket makes it compute a prompt without the mesh: same runner, pool, threads and chunks, but no
landing and no push. So the two sides of a pair differ in the hand-off and in nothing else."""

import argparse
import asyncio
import json
import logging
from pathlib import Path

from cli.local_mesh.loop import PreciseLoop
from cli.local_mesh.orphan import die_with
from cli.local_mesh.services import parse_settings
from cli.local_mesh.signs_of_life import signs_given
from engine.cpu.runner import CpuRunner
from engine.step.batch import Remaining, chunks, pages_needed, prompt_piece
from engine.step.plan import Plan
from engine.step.timed_runner import TimedRunner
from kvtransfer.tcp_writer import TcpWriter
from mesh.config.settings import read_settings
from mesh.config.worker_config import PrefillConfig
from mesh.messages.jobs import Sampling
from mesh.sessions.serving import run_together
from prefill_svc.main import open_worker
from prefill_svc.worker import PrefillWorker

LINE_BYTES = 1 << 20


class EngineAlone:
    def __init__(self, worker: PrefillWorker, config: PrefillConfig) -> None:
        assert isinstance(worker.runner, TimedRunner) and isinstance(worker.runner.runner, CpuRunner)
        self._runner, self._pages, self._config = worker.runner.runner, worker.pages, config
        self._links, self._loop = worker.links, asyncio.get_running_loop()

    def about(self, prompt_tokens: int) -> dict[str, int]:
        """Sizes of model and pages; `layer_group` is that of the prompt's last chunk."""
        runner, config = self._runner, self._config
        rows = (prompt_tokens - 1) % config.chunk_tokens + 1
        return {
            "layers": runner.layers,
            "layer_group": runner.layer_group(rows),
            "layer_bytes": runner.layer_bytes,
            "page_tokens": config.page_tokens,
            "chunk_tokens": config.chunk_tokens,
        }

    def throttle(self, bytes_per_second: float) -> float:
        """From now on limit pushes to this rate on every link that this worker has used."""
        for link in self._links:
            assert isinstance(link.writer, TcpWriter) and link.writer.throttle is not None
            link.writer.throttle.bytes_per_second = bytes_per_second
        return bytes_per_second

    async def compute(self, tokens: list[int]) -> float:
        """Seconds until the first token."""
        config, done, step, began = self._config, 0, 0, self._loop.time()
        pages = self._pages.take(pages_needed(len(tokens), config.page_tokens), b"")
        if pages is None:
            raise MemoryError("no pages are left for a prompt of the engine alone: raise pool_bytes")
        while done < len(tokens):
            waiting = [Remaining(0, len(tokens), done)]
            (chunk,) = chunks(waiting, budget=config.step_tokens, chunk=config.chunk_tokens)
            piece = prompt_piece(chunk, tokens, pages, page_tokens=config.page_tokens, sampling=GREEDY)
            step, done = step + 1, piece.stop
            await self._runner.run(Plan(step, (piece,)))
        seconds = self._loop.time() - began
        self._pages.release(pages)
        return seconds

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer lines of the form {"verb": argument}; the argument is a prompt's tokens, a rate or a prompt's
        length."""
        while line := await reader.readline():
            ((verb, argument),) = json.loads(line).items()
            match verb:
                case "compute":
                    answer: object = await self.compute(argument)
                case "throttle":
                    answer = self.throttle(argument)
                case _:
                    answer = self.about(argument)
            writer.write(json.dumps(answer).encode() + b"\n")
        writer.close()


GREEDY = Sampling(max_tokens=2, temperature=0.0)


async def serve(config: PrefillConfig, control: Path, bytes_per_second: float | None) -> None:
    async with open_worker(config, bytes_per_second=bytes_per_second) as worker:
        server = await asyncio.start_unix_server(EngineAlone(worker, config).serve, control, limit=LINE_BYTES)
        async with server:
            await run_together(worker.run(), worker.attachments.register(), server.serve_forever())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--control", type=Path, required=True)
    parser.add_argument("--bytes-per-second", type=float)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--alive", type=int, help="descriptor of the pipe for signs of life")
    parser.add_argument("--set", action="append", default=[])
    arguments = parser.parse_args()
    die_with(arguments.parent)
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    config = read_settings(None, {}, parse_settings(arguments.set)).prefill()
    with asyncio.Runner(loop_factory=PreciseLoop) as runner, signs_given(arguments.alive, runner.get_loop()):
        runner.run(serve(config, arguments.control, arguments.bytes_per_second))


if __name__ == "__main__":
    main()
