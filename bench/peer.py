"""`python -m bench.peer --url URL`: Baton beside another OpenAI server, under the same load on the same machine.

The peer runs already. This program starts two meshes of its own, one that splits (a prefill and a decode worker) and
one that does not (a decode worker that prefills itself), and sends `baton bench load`'s requests to the three in turns:
one at a time has work, and all see the same machine. Every figure is a ratio to the peer in the same round.
docs/bench.md says how a fair peer is started. `--make-model FOLDER` writes a model for both: the layers of Qwen2.5-0.5B
with random weights, and answers of printable bytes, so that every token is a chunk of text."""

import argparse
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.command import add_settings, parser_of, run, say
from bench.models import BYTES
from bench.processor import processor
from bench.spread import Spread
from cli.connecting.http_url import parse_url
from cli.load.estimate import ServiceSpeeds
from cli.load.form import Endpoint
from cli.load.measure import LoadOrder, measure
from cli.load.options import LoadOptions
from cli.load.shapes import ShapeName
from cli.load.statistics import LatencyLimits
from cli.local_mesh.own_mesh import own_mesh
from cli.local_mesh.services import parse_settings
from engine.builtin import make_shape

MESHES = {
    "one worker": {"mesh.prefill_workers": "0", "mesh.decode_workers": "1"},
    "split": {"mesh.prefill_workers": "1", "mesh.decode_workers": "1", "gateway.local": "never"},
}
HIGHER_IS_BETTER = {"output_tokens_per_second": True, "ttft_p50_ms": False, "ttft_p99_ms": False, "itl_p99_ms": False}
SKIPPED_MEASUREMENT = ServiceSpeeds(1000.0, 0.01)  # for an estimate that this program does not print


class NothingToCompare(Exception):
    """A server that is missing, or answers that have no figures."""


@dataclass(frozen=True, slots=True)
class PeerLoad:
    shape: ShapeName
    requests: int
    concurrency: int | None

    async def figures(self, url: str, seed: int) -> dict[str, float]:
        """Send the load once and return what was measured."""
        order = LoadOrder(
            options=LoadOptions(self.shape, None, None, self.requests, None, self.concurrency, seed),
            url=parse_url(url),
            endpoint=Endpoint.COMPLETIONS,
            model=None,
            api_key="none",
            limits=LatencyLimits(),
            speeds=SKIPPED_MEASUREMENT,
            workers=None,
            timeout_seconds=600.0,
        )
        result = await measure(order, show=lambda text: None)
        if result is None:
            raise SystemExit("interrupted")
        found = result.report.summary
        if found.failed or found.ttft is None or found.itl is None or found.output_tokens_per_second is None:
            raise NothingToCompare(f"{url}: nothing to compare: {found}, {result.report.examples}")
        return {
            "output_tokens_per_second": found.output_tokens_per_second,
            "ttft_p50_ms": found.ttft.p50 * 1000,
            "ttft_p99_ms": found.ttft.p99 * 1000,
            "itl_p99_ms": found.itl.p99 * 1000,
        }


def main() -> None:
    parser = parser_of("peer", __doc__)
    parser.add_argument("--url", help="base URL of the peer's OpenAI API")
    parser.add_argument("--name", default="peer", help="what the report calls the peer")
    parser.add_argument("--model", help="Hugging Face folder that the peer serves, too")
    parser.add_argument("--make-model", type=Path, metavar="FOLDER", help="write a model for both, and end")
    parser.add_argument("--shape", type=ShapeName, default=ShapeName.CONCURRENT, help="a shape of baton bench load")
    parser.add_argument("--requests", type=int, default=48, help="requests of one turn")
    parser.add_argument("--concurrency", type=int, default=None, help="the shape's own unless given")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each server")
    add_settings(parser, "setting of both meshes")
    run(parser, bench, NothingToCompare)


async def bench(options: argparse.Namespace) -> dict[str, Any]:
    if options.make_model is not None:
        print(make_shape(options.make_model, shape=BYTES))
        raise SystemExit(0)
    if not (options.url and options.model):
        say("bench.peer: --url and --model are needed")
        raise SystemExit(2)
    load, name = PeerLoad(options.shape, options.requests, options.concurrency), options.name
    settings = {"model": options.model} | parse_settings(options.set)
    async with AsyncExitStack() as stack:
        urls = {name: options.url}
        for mesh_name, workers in MESHES.items():
            gateway = await stack.enter_async_context(own_mesh(settings | workers))
            urls[mesh_name] = f"http://{gateway.http_address}/v1"
        taken = await take_turns(load, urls, options.rounds)
    return summary(taken, name, load)


async def take_turns(load: PeerLoad, urls: Mapping[str, str], rounds: int) -> dict[str, list[dict[str, float]]]:
    """Figures of each round by server. Another server begins each round, and each round has prompts of its own."""
    taken: dict[str, list[dict[str, float]]] = {server: [] for server in urls}
    for number in range(rounds):
        order = list(urls)[number % len(urls) :] + list(urls)[: number % len(urls)]
        for server in order:
            taken[server].append(await load.figures(urls[server], seed=number))
            found = taken[server][-1]
            say(
                f"round {number + 1} of {rounds}: {server:12} {found['output_tokens_per_second']:7.1f} tokens/s, "
                f"TTFT p50 {found['ttft_p50_ms']:.0f} ms, ITL p99 {found['itl_p99_ms']:.0f} ms"
            )
    return taken


def summary(taken: dict[str, list[dict[str, float]]], name: str, load: PeerLoad) -> dict[str, Any]:
    """Medians of every server, and the ratio of every mesh to the peer, round by round."""
    ratios: dict[str, dict[str, Any]] = {}
    for server in MESHES:
        ratios[server] = {}
        for figure, higher in HIGHER_IS_BETTER.items():
            spread = Spread.ratio([ours[figure] for ours in taken[server]], [its[figure] for its in taken[name]])
            ratios[server][figure] = {"median": spread.median, "lowest": spread.low, "highest": spread.high}
            say(f"{server} / {name}, {figure} ({'higher' if higher else 'lower'} is better): {spread}")
    return {
        "peer": name,
        "shape": load.shape.value,
        "requests": load.requests,
        "rounds": len(taken[name]),
        "ratio_to_peer": ratios,
        "medians": {
            server: {figure: median(one[figure] for one in found) for figure in HIGHER_IS_BETTER}
            for server, found in taken.items()
        },
        "processor": processor(),
    }


if __name__ == "__main__":
    main()
