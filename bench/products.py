"""`python -m bench.products`: the products of a layer in each form, the bodies of this machine in turns.

The shapes are those of Qwen2.5-0.5B, with random weights. Each turn computes the four products of a layer in every form
with every body of `--bodies` that knows it; a figure is the time of the first over that of the second in the same turn,
so that neither the clock nor neighbours favour one of them."""

import argparse
from collections import defaultdict
from time import perf_counter
from typing import Any

import numpy as np

import baton_kernels
from baton_kernels import limits, products
from baton_kernels.forms import MatrixForm
from bench.command import parser_of, run, say
from bench.processor import processor
from bench.spread import Spread

SHAPES = ((1152, 896, False), (896, 896, False), (9728, 896, True), (896, 4864, False))  # outputs, inputs, gated
FORMS = {
    "pairs": MatrixForm("pairs"),
    "amx": MatrixForm("amx"),
    "w8a8": MatrixForm("int8"),
    "w8a8-g64": MatrixForm("int8-groups", group=64),
    "w8a8-g128": MatrixForm("int8-groups", group=128),
    "w4a8": MatrixForm("int4", group=32),
    "w4a8-g32": MatrixForm("int4-groups", group=32, middle=8, scales="fp16"),
}


def main() -> None:
    parser = parser_of("products", __doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[32, 512])
    parser.add_argument("--turns", type=int, default=31)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bodies", nargs="+", default=["avx512vnni", "amx"], help="bodies of integer products")
    run(parser, bench)


def bench(options: argparse.Namespace) -> dict[str, Any]:
    baton_kernels.set_threads(options.threads)
    known = [body for body in options.bodies if body in baton_kernels.product_bodies("integers")]
    say(f"{processor()}, {options.threads} threads, integer products by {', '.join(known)}")
    layers = {name: [_packed(form, n, k) for n, k, _ in SHAPES] for name, form in FORMS.items()}
    report: dict[str, Any] = {"processor": processor(), "threads": options.threads, "turns": options.turns}
    for rows in options.rows:
        seconds = _seconds(layers, known, rows, options.turns)
        for name, first in seconds.items():
            for other, second in seconds.items():
                if name != other:
                    ratio = Spread.ratio(first, second)
                    report[f"{rows} rows: {name} over {other}"] = [ratio.median, *ratio.range]
        for name, runs in seconds.items():
            say(f"{rows:5} rows  {name:22} {Spread.of([1e3 * each for each in runs])} ms a layer")
    return report


def _seconds(layers: dict[str, list[Any]], known: list[str], rows: int, turns: int) -> dict[str, list[float]]:
    """The time of a layer's products in each turn, by form and body."""
    rng, seconds = np.random.default_rng(1), defaultdict[str, list[float]](list)
    xs = {k: rng.standard_normal((rows, k)).astype(np.float32) for _, k, _ in SHAPES}
    for turn in range(turns + 1):
        for name, weights in layers.items():
            for body in (None,) if FORMS[name].dense else known:
                baton_kernels.choose(body)
                began = perf_counter()
                for (n, k, gated), weight in zip(SHAPES, weights, strict=True):
                    out = np.empty((rows, n // 2 if gated else n), np.float32)
                    (products.gated if gated else products.product)(xs[k], weight, out)
                if turn:  # the first one warms up
                    seconds[f"{name} {body or ''}".strip()].append(perf_counter() - began)
    baton_kernels.choose(None)
    return seconds


def _packed(form: MatrixForm, n: int, k: int) -> Any:
    rng = np.random.default_rng(n)
    if form.dense:
        out = limits.aligned(products.pack_bytes(form.scheme, n, k))
        products.pack(form.scheme, rng.standard_normal((n, k)).astype(np.float32), out)
        return out
    groups, nibbles = k // form.group if form.group else 1, form.scheme.startswith("int4")
    values = rng.integers(0, 16, (n, k)) if nibbles else rng.integers(-127, 128, (n, k))
    small = form.scheme == "int4"
    matrix = products.Integers(
        form,
        values.astype(np.int8),
        np.ones(n if groups == 1 or small else (n, groups), np.float16 if form.scales == "fp16" else np.float32),
        np.full((n, groups), 8, np.int8) if small else None,
        rng.integers(1, 16, (n, groups)).astype(np.uint8) if small else None,
    )
    out = limits.aligned(matrix.nbytes)
    products.pack_integers(matrix, out)
    return out


if __name__ == "__main__":
    main()
