"""`python -m tests.bodies --cases 10000 --json`: integer products of random forms and shapes, on every body here.

A case is a form, a shape, weights and activations that follow from its number: ordinary ones, the largest that the form
allows, zeros, and activations that lie beside ties. Every body must give the bits of the recipe in numpy. Status 1 if
one does not; its number is told, and `--first NUMBER --cases 1` repeats it."""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import baton_kernels as bk
from baton_kernels import reference
from baton_kernels.selftest import near_ties
from tests.unit.kernels.test_integers import FORMS, made, multiply, packed, same

BODIES_HERE = sorted(bk.bodies()["product.integers.many"])
MOST_OUTPUTS, MOST_INPUTS, MOST_ROWS, MOST_ELEMENTS = 130, 2048, 200, 40_000


@dataclass(frozen=True, slots=True)
class BodyCase:
    form: bk.MatrixForm
    rows: int
    outputs: int
    inputs: int
    kind: str  # kind of the numbers: ordinary | worst | ties | mixed

    @classmethod
    def drawn(cls, rng: np.random.Generator) -> "BodyCase":
        form = FORMS[int(rng.integers(len(FORMS)))]
        unit = max(form.group, 64) * form.segments
        inputs = unit * int(rng.integers(1, max(2, MOST_INPUTS // unit)))
        most = min(MOST_ROWS, max(1, MOST_ELEMENTS // inputs))
        rows = int(rng.integers(1, min(most, 14) + 1 if rng.random() < 0.7 else most + 1))
        kind = ("ordinary", "worst", "ties", "mixed")[int(rng.integers(4))]
        return cls(form, rows, int(rng.integers(1, MOST_OUTPUTS + 1)), inputs, kind)

    def activations(self, rng: np.random.Generator) -> np.ndarray:
        x = rng.standard_normal((self.rows, self.inputs)).astype(np.float32)
        if self.kind == "worst":
            return rng.choice(np.array([-1.0, 1.0], np.float32), x.shape)
        if self.kind == "ties":
            return np.ldexp(np.resize(near_ties(self.inputs), x.shape), int(rng.integers(-9, 9)))
        if self.kind == "mixed":
            x[rng.random(x.shape) < 0.3] = 0.0
            x *= np.ldexp(np.float32(1), rng.integers(-60, 60, (self.rows, 1))).astype(np.float32)
        return x


def wrong_bodies(number: int, bodies: Sequence[str]) -> tuple[BodyCase, list[str]]:
    """The case of this number, and the bodies that give other bits than the recipe."""
    rng = np.random.default_rng(number)
    case = BodyCase.drawn(rng)
    matrix = made(case.form, case.outputs, case.inputs, rng, worst=case.kind == "worst")
    x, weight = case.activations(rng), packed(matrix)
    expected, wrong = reference.integers(x, matrix), []
    for body in bodies:
        bk.choose(body)
        bk.set_threads(1 + number % 3)
        if not same(multiply(x, weight), expected):
            wrong.append(body)
    bk.choose(None)
    return case, wrong


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bodies", description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--json", action="store_true", help="end stdout with one JSON object")
    options = parser.parse_args()
    seen, failed = Counter[str](), dict[int, str]()
    for number in range(options.first, options.first + options.cases):
        case, wrong = wrong_bodies(number, BODIES_HERE)
        seen[f"{case.form.scheme} {case.kind}"] += 1
        if wrong:
            failed[number] = f"{', '.join(wrong)}: {case}"
            print(f"case {number}: {failed[number]}", file=sys.stderr)
        if number % 1000 == 999:
            print(f"{number + 1 - options.first} cases, {len(failed)} failed", file=sys.stderr)
    if options.json:
        print(json.dumps({"cases": options.cases, "bodies": BODIES_HERE, "seen": seen, "failed": failed}))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
