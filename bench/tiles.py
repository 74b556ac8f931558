"""`python -m bench.tiles`: what matrix tiles make of a core that another hardware thread shares.

Each turn multiplies tiles for a few milliseconds in three ways: from registers alone, the peak; loaded from the
first-level cache in the order of products, with four of the eight tiles in use; and with all eight in use. Turns come a
tenth of a second apart, because neighbours come and go."""

import argparse
from statistics import quantiles
from time import sleep
from typing import Any

import baton_kernels
from baton_kernels import limits
from bench.command import parser_of, run, say
from bench.processor import processor

WAYS = ("tiles", "loaded_tiles", "eight_tiles")
STEPS, APART = 10_000, 0.1
HALF = 0.5


class NoTiles(Exception):
    """The processor has no matrix tiles."""


def main() -> None:
    parser = parser_of("tiles", __doc__)
    parser.add_argument("--turns", type=int, default=200, help="two or more")
    parser.add_argument("--threads", type=int, default=2)
    run(parser, bench, NoTiles)


def bench(options: argparse.Namespace) -> dict[str, Any]:
    baton_kernels.set_threads(options.threads)
    if not limits.operations_per_second(WAYS[0], STEPS):
        raise NoTiles(f"{processor()} has no matrix tiles")
    seen: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(max(2, options.turns)):
        for way in WAYS:
            seen[way].append(limits.operations_per_second(way, STEPS))
        sleep(APART)
    report: dict[str, Any] = {"processor": processor(), "threads": options.threads, "turns": options.turns}
    for way in WAYS[1:]:
        shares = [made / peak for made, peak in zip(seen[way], seen["tiles"], strict=True)]
        slow = sum(share < HALF for share in shares) / len(shares)
        report[way] = {"share_of_peak": quantiles(shares, n=4), "below_half": slow}
        quarters = ", ".join(f"{each:.2f}" for each in report[way]["share_of_peak"])
        say(f"{way:<13} quarters of turns reach {quarters} of the peak, {slow:.0%} of turns less than half of it")
    return report


if __name__ == "__main__":
    main()
