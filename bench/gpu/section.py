"""`python -m bench.gpu.section NAME`: one section of the GPU run in this process; figures go to stdout line by line."""

import argparse
import importlib

import torch

from bench.gpu.clock import Clock

MODULES = {
    "gate": "bench.gpu.gate",
    "kernels": "bench.gpu.kernels",
    "exactness": "bench.gpu.exactness",
    "steps": "bench.gpu.steps",
    "mesh": "bench.gpu.mesh",
    "verify": "bench.gpu.verify",
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.section", description=__doc__)
    parser.add_argument("name", choices=tuple(MODULES))
    parser.add_argument("--dry", action="store_true", help="on the CPU, tiny shapes, in Triton's interpreter")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    clock = Clock(torch.device("cpu") if arguments.dry else torch.device("cuda", torch.cuda.current_device()))
    importlib.import_module(MODULES[arguments.name]).measure(clock)


if __name__ == "__main__":
    main()
