"""One launch compiled ahead of time for an architecture that is not here, and what the generated code says about it."""

import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget

from baton_kernels.triton.launch import Launch

SHARED_LIMIT_BYTES = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}  # of one block
_KINDS = ("wgmma.mma_async", "tcgen05.mma", "mma.sync", "cp.async.bulk.tensor", "cp.async.cg", "atom.")


@dataclass(frozen=True, slots=True)
class Compiled:
    name: str
    architecture: int
    body: str  # the kernel's function
    family: str  # kernels of one family must give a row the same bits
    tile: str
    block: int
    shared_bytes: int
    registers: int
    spill_bytes: int
    kinds: tuple[str, ...]  # instruction kinds found in the PTX
    matrix: tuple[str, ...]  # shapes and layouts of the matrix instructions, without their width
    seconds: float
    wrong: tuple[str, ...]  # why the gate refuses it


def compile_launch(launch: Launch, architecture: int) -> Compiled:
    """Never raises for what a kernel does: a failure is the reason why it is refused."""
    began = time.perf_counter()
    constants = launch.constants
    about: dict[str, Any] = {
        "name": launch.name, "architecture": architecture, "body": launch.kernel.__name__, "family": launch.family,
        "tile": f"{constants.get('ROWS')} rows, {launch.warps} warps", "block": constants.get("BLOCK", 0),
    }  # fmt: skip
    try:
        with as_if_on(architecture):
            built = launch.kernel.warmup(grid=launch.grid, **launch.arguments, **launch.constants, **launch.options)
    except Exception as error:
        # Whatever it is, the gate reports it beside the others; the innermost cause says most.
        while error.__cause__ is not None and isinstance(error.__cause__, Exception):
            error = error.__cause__
        reason = " ".join(f"does not compile: {type(error).__name__}: {error}"[-600:].split())
        return Compiled(
            **about, shared_bytes=0, registers=0, spill_bytes=0, kinds=(), matrix=(),
            seconds=time.perf_counter() - began,
            wrong=(reason,),
        )  # fmt: skip
    ptx, shared = built.asm["ptx"], int(built.metadata.shared)
    registers, spill_bytes = _resources(built.asm["cubin"])
    wrong = [f"no {kind} in its code" for kind in launch.instructions if kind not in ptx]
    if shared > SHARED_LIMIT_BYTES[architecture]:
        wrong.append(f"{shared} bytes of shared memory, {SHARED_LIMIT_BYTES[architecture]} are there")
    if spill_bytes:
        wrong.append(f"spills {spill_bytes} bytes")
    return Compiled(
        **about,
        shared_bytes=shared,
        registers=registers,
        spill_bytes=spill_bytes,
        kinds=tuple(kind for kind in _KINDS if kind in ptx),
        matrix=tuple(sorted(set(re.findall(r"(?<=nvidia_mma<)\{[^}]*\}", built.asm["ttgir"])))),
        seconds=time.perf_counter() - began,
        wrong=tuple(wrong),
    )


class _Device:
    """As much of Triton's driver as compiling asks for."""

    def __init__(self, architecture: int) -> None:
        self._architecture = architecture

    def get_current_device(self) -> int:
        return 1000 + self._architecture  # kernels remember by device what they compiled

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._architecture, 32)


@contextmanager
def as_if_on(architecture: int) -> Iterator[None]:
    """Kernels are compiled as a launch on such a device would have them compiled, under the same key in the cache."""
    config = triton.runtime.driver
    before = config._active  # none yet, where there is no GPU
    config.set_active(_Device(architecture))
    try:
        yield
    finally:
        config.set_active(before)


@cache
def _cuobjdump() -> str:
    return str(Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump")


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers of a thread, and bytes that it keeps in local memory."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        said = subprocess.run(
            [_cuobjdump(), "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", said)
    if found is None:
        raise RuntimeError(f"cuobjdump says nothing about registers: {said!r}")
    registers, stack, local = map(int, found.groups())
    return registers, stack + local
