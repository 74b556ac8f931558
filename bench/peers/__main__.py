"""`python -m bench.peers --tools FOLDER --json [--quick]`, or `make peers`: Baton beside other engines on this machine.

OpenVINO GenAI and vLLM compute the same points on a model of Qwen2.5-0.5B's shape with random weights, in 16 bits, in
int8 and in int4; llama.cpp on SmolLM2 in the four bits of its own file (q4_1). All engines of a precision are
loaded, and Baton takes turns with each. One that cannot serve the model is named and left out. Without --quick sixteen
clients then ask `baton up` and vLLM's server, in bf16 and with vLLM's int8."""

import argparse
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import Any

from bench.command import parser_of, run, say
from bench.models import BYTES, make_once, path_beside
from bench.peer import NothingToCompare
from bench.peers.channels import in_channels
from bench.peers.engines import EngineFailed, EngineProcess, Engines
from bench.peers.picture import draw
from bench.peers.served import POINT, compare_served, ratios
from bench.peers.turns import POINTS, Comparison, best_peer, compare, tell
from bench.processor import processor
from bench.roofline_limits import Meter
from bench.spread import Spread
from cli.models.known_models import packaged_file
from engine.formats.gguf_folder import folder_of_gguf
from mesh.config.common_config import default_cache_folder

PRECISIONS = ("bf16", "int8", "int4", "q4_1")
SERVED = ("bf16", "int8")
QUICK = OF_GGUF = ("prefill_512", "decode_b1", "decode_b8")


def main() -> None:
    parser = parser_of("peers", __doc__)
    parser.add_argument("--tools", type=Path, required=True, help="folder of the peers' environments")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--points", nargs="*", choices=tuple(POINTS), default=tuple(POINTS), help="none: only HTTP")
    parser.add_argument("--no-http", action="store_true", help="leave the sixteen clients out")
    parser.add_argument("--product-path", default="auto", help="of Baton in 16 bits: auto, amx or pairs")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=5, help="turns at each point that count; figures are medians")
    parser.add_argument("--most", type=int, default=12, help="turns at each point before giving up")
    parser.add_argument("--quick", action="store_true", help="three points, two turns")
    parser.add_argument("--picture", type=Path, help="draw the figures there, as SVG")
    run(parser, bench, NothingToCompare)


async def bench(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.quick:
        arguments.points, arguments.turns, arguments.most, arguments.no_http = QUICK, 2, 6, True
    engines = Engines(arguments.tools.resolve(), arguments.threads)
    report: dict[str, Any] = {"machine": processor(), "threads": arguments.threads, "engines": {}, "left_out": {}}
    report["product_path"] = path = arguments.product_path
    report |= {"points": []} | {name: {} for name in ("ratio_to_best_peer", "best_peer", "spread", "dropped")}
    report["latency_ratio"] = {}
    limits = {"turns": arguments.turns, "most": arguments.most}
    for precision in arguments.precisions:
        started = list[EngineProcess]()
        async with AsyncExitStack() as stack:
            for engine in engines_of(engines, precision, path) if arguments.points else ():
                try:
                    started.append(await stack.enter_async_context(engine))
                except (EngineFailed, OSError) as error:
                    report["left_out"][f"{engine.name} {precision}"] = str(error)
                    say(f"left out: {engine.name} {precision}: {error}")
                else:
                    report["engines"][f"{engine.name} {precision}"] = engine.version
            meter = Meter(("amx" if path == "amx" else "pairs") if precision == "bf16" else "int8")
            for point in arguments.points:
                if len(started) > 1 and (precision != "q4_1" or point in OF_GGUF):
                    found = [
                        tell(point, precision, await compare(started[0], peer, POINTS[point], **limits, meter=meter))
                        for peer in started[1:]
                    ]
                    add(report, precision, point, found)
        if precision in SERVED and engines.has("vllm") and not arguments.no_http:
            model = make_once(default_cache_folder(), BYTES)
            if precision == "int8":
                model = in_channels(model, engines.tools / f"{model.name}-w8a8")
            try:
                add_served(
                    report,
                    precision,
                    await compare_served(engines, model, arguments.turns, path_beside(path, precision)),
                )
            except (EngineFailed, OSError) as error:
                report["left_out"][f"vLLM {POINT}_{precision}"] = str(error)
    if arguments.picture is not None:
        arguments.picture.write_text(draw(report))
    return report


def engines_of(engines: Engines, precision: str, path: str) -> Sequence[EngineProcess]:
    """Baton first. Peers whose environment is missing are not there."""
    if precision == "q4_1":
        file = packaged_file("smollm2", default_cache_folder())
        folder = folder_of_gguf(file, default_cache_folder())
        return (engines.baton(folder, "none"), engines.llama(file)) if engines.has("llama") else ()
    model = make_once(default_cache_folder())
    ours = path_beside(path, precision)
    own = engines.baton(model, "none" if precision == "bf16" else precision, path=ours)
    found = [own]
    if engines.has("openvino"):
        found.append(engines.openvino(model, precision))
    if precision == "bf16" and engines.has("vllm"):
        found.append(engines.vllm(model))
    if precision == "int8" and engines.has("vllm"):
        channels = in_channels(model, engines.tools / f"{model.name}-w8a8")
        found += [engines.vllm(channels), engines.baton(channels, "none", "Baton on vLLM's file", path=ours)]
    return found


def add(report: dict[str, Any], precision: str, point: str, found: Sequence[Comparison]) -> None:
    best = best_peer([each for each in found if not each.peer.startswith("Baton")])
    for each in found:
        if each.ours:
            speeds = {each.peer: each.theirs} | ({"Baton": each.ours} if each is best else {})
            report["points"] += [
                {"engine": engine, "precision": precision, "point": point, "tokens_per_second": median(them)}
                for engine, them in speeds.items()
            ]
        report["dropped"][f"{point}_{precision} {each.peer}"] = each.dropped
    if best is not None:
        name = f"{point}_{precision}"
        add_ratio(report, name, best.peer, best.ratio)


def add_ratio(report: dict[str, Any], name: str, peer: str, ratio: Spread) -> None:
    report["ratio_to_best_peer"][name], report["best_peer"][name] = ratio.median, peer
    report["spread"][name] = ratio.range


def add_served(report: dict[str, Any], precision: str, taken: dict[str, dict[str, list[float]]]) -> None:
    name = f"{POINT}_{precision}"
    for engine, figures in taken.items():
        medians = {figure: median(values) for figure, values in figures.items()}
        report["points"].append({"engine": engine, "precision": precision, "point": POINT} | medians)
    found = ratios(taken)
    add_ratio(report, name, "vLLM", found["tokens_per_second"])
    report["latency_ratio"][name] = {figure: found[figure].median for figure in ("ttft_p99", "itl_p99")}


if __name__ == "__main__":
    main()
