"""`python -m tests.gpu_gate.aot`: compiles every GPU kernel ahead of time, without a GPU, and reads the machine code.

The gate refuses a kernel that does not compile, spills registers, needs more shared memory than the architecture has,
lacks the instructions that it was written for, waits for them one by one, loads nothing ahead, or sums a row in another
order than the kernel that must give the same bits. Status 1 when it refuses a kernel. Nothing is cached, so that each
run compiles what it reports; but on a machine with a GPU, `bench/gpu/gate.py` keeps the programs in Triton's cache,
where the kernels' first launches find them."""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from multiprocessing import get_context

from baton_kernels.triton.launch import ARCHITECTURES, INTERPRETED
from tests.gpu_gate import configurations
from tests.gpu_gate.compiled import Compiled, compile_launch
from tests.gpu_gate.row_orders import unlike_orders


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu_gate.aot", description=__doc__)
    parser.add_argument("--json", action="store_true", help="end stdout with one JSON object")
    parser.add_argument("--small", action="store_true", help="one configuration of each kernel instead of all")
    parser.add_argument(
        "--architectures", type=int, nargs="+", choices=ARCHITECTURES, default=ARCHITECTURES, metavar="SM"
    )
    parser.add_argument("--processes", type=int, default=cores(), help="default: one per core")
    arguments = parser.parse_args()
    if INTERPRETED:
        sys.exit("tests.gpu_gate.aot: unset TRITON_INTERPRET; under it kernels are interpreted, not compiled")
    done = gate(arguments.architectures, small=arguments.small, processes=arguments.processes)
    refused = refusals(done)
    for line in refused:
        print(line, file=sys.stderr)
    if arguments.json:
        print(json.dumps(report(done, refused)))
    sys.exit(bool(refused))


def cores() -> int:
    return len(os.sched_getaffinity(0))


def gate(architectures: Sequence[int], *, small: bool, processes: int, keep: bool = False) -> list[Compiled]:
    """Compile for all architectures. `keep` leaves the programs in Triton's own cache, under the keys of real
    launches."""
    chosen = configurations.one_each if small else configurations.launches
    work = [(arch, index) for arch in architectures for index, _ in enumerate(chosen(arch))]
    context = get_context("spawn")
    with tempfile.TemporaryDirectory() as cache:
        start = _use_tritons_cache if keep else partial(_use_cache, cache)
        with ProcessPoolExecutor(processes, mp_context=context, initializer=start) as pool:
            done = []
            for one in pool.map(partial(_compile, small), work):
                done.append(one)
                verdict = "; ".join(one.wrong) or "fine"
                print(
                    f"sm_{one.architecture} {one.name}: {one.registers} registers, {one.shared_bytes} bytes shared, "
                    f"{' '.join(one.kinds) or 'no matrix'}, {one.seconds:.1f} s: {verdict}",
                    file=sys.stderr,
                    flush=True,
                )
    return done


def refusals(done: Sequence[Compiled]) -> list[str]:
    """One line for each defect."""
    each = [f"sm_{one.architecture} {one.name}: {reason}" for one in done for reason in one.wrong]
    return each + unlike_orders(done)


def report(done: Sequence[Compiled], refused: Sequence[str]) -> dict[str, object]:
    return {
        "kernels": len({one.body for one in done}),
        "architectures": sorted({one.architecture for one in done}),
        "configurations": len(done),
        "failed": len(refused),
        "spills": sum(one.spill_bytes for one in done),
        "refused": list(refused),
        "compiled": [asdict(one) for one in done],
    }


def _use_tritons_cache() -> None:
    """Nothing needs to be set."""


def _use_cache(folder: str) -> None:
    """Point Triton at a cache that ends with the run, and that it never reads."""
    os.environ["TRITON_CACHE_DIR"] = folder
    os.environ["TRITON_ALWAYS_COMPILE"] = "1"


def _compile(small: bool, one: tuple[int, int]) -> Compiled:
    architecture, index = one
    chosen = configurations.one_each if small else configurations.launches
    launch = next(launch for at, launch in enumerate(chosen(architecture)) if at == index)
    return compile_launch(launch, architecture)


if __name__ == "__main__":
    main()
