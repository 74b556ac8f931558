"""`python -m bench.transport`: how fast pages move between two processes, beside what the machine can do.

Spans of 16 to 256 KiB, from places apart to places in random order, through the product's own transports: beside
memcpy, and TCP also beside a plain C loop over such sockets (bench/raw_tcp.py). Each pass stands between two of what
it is compared with. Every figure is a median over passes, with its lowest and highest. `ratio_to_memcpy`,
`ratio_to_raw_tcp` and `cpu_seconds_per_gb` hold each transport's worst size. Status 1 when a target is missed."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from bench.command import parser_of, run, say
from bench.processor import processor
from bench.raw_tcp import raw_tcp
from bench.spread import Spread, medians
from cli.doctoring.transport_speed import SpeedFigures, TransportFigures, measure, receiving_process
from cli.local_mesh.loop import PreciseLoop
from kvtransfer.transports import every_transport

TARGETS = {  # shares of the speed of what stands beside it
    "ratio_to_memcpy": {"shm": 0.85},
    "ratio_to_raw_tcp": {"tcp": 0.8},
}
BESIDE = {"ratio_to_memcpy": "memcpy", "ratio_to_raw_tcp": "a plain C loop over TCP"}
RIVALS = {"tcp": raw_tcp}
SPANS_KIB = (16, 32, 64, 128, 256)
MIB, GB = 1 << 20, 1e9


def main() -> None:
    parser = parser_of("transport", __doc__)
    parser.add_argument("--passes", type=at_least_one, default=15, help="measured passes of each transport and size")
    parser.add_argument("--mib", type=at_least_one, default=64, help="MiB that a pass moves")
    parser.add_argument(
        "--spans", type=at_least_one, nargs="+", default=SPANS_KIB, metavar="KIB", help="sizes of spans"
    )
    run(parser, bench, loop_factory=PreciseLoop)


def at_least_one(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return int(text)


async def bench(options: argparse.Namespace) -> dict[str, Any]:
    obstacles = {name: way.available() for name, way in every_transport("cpu", host="127.0.0.1").items()}
    left_out = {name: obstacle for name, obstacle in obstacles.items() if obstacle}
    for name, obstacle in left_out.items():
        say(f"{name} is left out: {obstacle}")
    names = [name for name in obstacles if name not in left_out]
    say(f"{processor()}; each figure: median   (lowest to highest)")
    found: list[SpeedFigures] = []
    async with receiving_process() as peer:
        for kib in options.spans:
            sizes = {"span_bytes": kib * 1024, "pass_bytes": options.mib * MIB, "passes": options.passes}
            found.append(await measure(peer, names, **sizes, rivals=RIVALS))
            tell(found[-1])
    figures = keys(found)
    return figures | {"left_out": left_out, "missed": misses(figures), "processor": processor()}


def tell(figures: SpeedFigures) -> None:
    say(f"spans of {figures.span_bytes // 1024} KiB, memcpy GB/s     {memcpy_speed(figures)}")
    for name, row in size_row(figures).items():
        say(f"  {name:<6} share of memcpy   {row['ratio_to_memcpy']}   CPU s/GB {row['cpu_seconds_per_gb']}")
        if "ratio_to_raw_tcp" in row:
            say(f"         share of raw TCP  {row['ratio_to_raw_tcp']}   GB/s {row['raw_tcp_gb_per_second']}")


def memcpy_speed(figures: SpeedFigures) -> Spread:
    return Spread.of([figures.pass_bytes / seconds / GB for seconds in figures.memcpy_seconds])


def size_row(figures: SpeedFigures) -> dict[str, dict[str, Spread]]:
    """The figures of each transport for one size of spans."""
    return {name: transport_row(figures, passes) for name, passes in figures.transports.items()}


def transport_row(figures: SpeedFigures, passes: TransportFigures) -> dict[str, Spread]:
    row = {
        "gb_per_second": Spread.of([figures.pass_bytes / seconds / GB for seconds in passes.seconds]),
        "ratio_to_memcpy": Spread.of(passes.memcpy_share),
        "cpu_seconds_per_gb": Spread.of([seconds / figures.pass_bytes * GB for seconds in passes.cpu_seconds]),
    }
    if passes.rival_share:
        raw = [figures.pass_bytes / seconds / GB for seconds in passes.rival_seconds]
        row |= {"ratio_to_raw_tcp": Spread.of(passes.rival_share), "raw_tcp_gb_per_second": Spread.of(raw)}
    return row


def keys(found: Sequence[SpeedFigures]) -> dict[str, Any]:
    """The worst size of each transport, its spread, and every size."""
    rows = [size_row(figures) for figures in found]
    ratios = {
        key: {name: worst for name in rows[0] if (worst := _worst([row[name] for row in rows], key))} for key in BESIDE
    }
    cpu = {name: max(row[name]["cpu_seconds_per_gb"].median for row in rows) for name in rows[0]}
    spreads = {key: {name: asdict(worst) for name, worst in each.items()} for key, each in ratios.items()}
    return {key: medians(each) for key, each in ratios.items()} | {
        "spreads": spreads,
        "cpu_seconds_per_gb": cpu,
        "spans": list(map(_size, found, rows)),
    }


def misses(figures: dict[str, Any]) -> list[str]:
    """One line for each missed target."""
    return [
        f"{name} moves pages at {figures[key][name]:.3f} of the speed of {BESIDE[key]}, wanted >= {wanted}"
        for key, targets in TARGETS.items()
        for name, wanted in targets.items()
        if figures[key].get(name, wanted) < wanted
    ]


def _worst(rows: Sequence[dict[str, Spread]], key: str) -> Spread | None:
    return min((row[key] for row in rows if key in row), key=lambda spread: spread.median, default=None)


def _size(figures: SpeedFigures, row: dict[str, dict[str, Spread]]) -> dict[str, Any]:
    return {
        "span_bytes": figures.span_bytes,
        "memcpy_gb_per_second": asdict(memcpy_speed(figures)),
        "transports": {name: {key: asdict(value) for key, value in each.items()} for name, each in row.items()},
    }


if __name__ == "__main__":
    main()
