"""One launch compiled ahead of time for an architecture, and what its machine code shows."""

import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget

from baton_kernels.triton.launch import Launch

SHARED_LIMIT_BYTES = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}  # shared memory of one block
_LEFT_LOADING = re.compile(r"ttg\.async_wait .*num = (\d+)")  # groups of loads that are still under way after a wait
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
    """Compile and judge one launch. A failure to compile raises nothing: it becomes the reason of the refusal."""
    began = time.perf_counter()
    constants = launch.constants
    about: dict[str, Any] = {
        "name": launch.name, "architecture": architecture, "body": launch.kernel.__name__, "family": launch.family,
        "tile": f"{constants.get('ROWS')} rows, {launch.warps} warps", "block": constants.get("BLOCK", 0),
    }  # fmt: skip
    try:
        built = build(launch, architecture)
    except Exception as error:
        # The gate reports every failure beside the others; the innermost cause says most.
        while error.__cause__ is not None and isinstance(error.__cause__, Exception):
            error = error.__cause__
        reason = " ".join(f"does not compile: {type(error).__name__}: {error}"[-600:].split())
        return Compiled(
            **about, shared_bytes=0, registers=0, spill_bytes=0, kinds=(), matrix=(),
            seconds=time.perf_counter() - began,
            wrong=(reason,),
        )  # fmt: skip
    ptx, layouts, shared = built.asm["ptx"], built.asm["ttgir"], int(built.metadata.shared)
    registers, spill_bytes = _resources(built.asm["cubin"])
    wrong = [f"no {kind} in its code" for kind in launch.instructions if kind not in ptx]
    if "wgmma" in launch.instructions and _waits_for_each(ptx, built.asm["cubin"]):
        wrong.append("its matrix instructions are waited for one by one")
    if "cp.async" in launch.instructions and not any(map(int, _LEFT_LOADING.findall(layouts))):
        wrong.append("nothing is loaded ahead of what is worked on")
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
        matrix=tuple(sorted(set(re.findall(r"(?<=nvidia_mma<)\{[^}]*\}", layouts)))),
        seconds=time.perf_counter() - began,
        wrong=tuple(wrong),
    )


def build(launch: Launch, architecture: int) -> Any:
    """Triton's own result, as a launch on such a device would have it built, under the same key in the cache."""
    with as_if_on(architecture):
        return launch.kernel.warmup(grid=launch.grid, **launch.arguments, **launch.constants, **launch.options)


def dump_of(cubin: bytes, about: str) -> str:
    """Output of NVIDIA's cuobjdump about machine code."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([tool, about, file.name], capture_output=True, text=True, check=True).stdout


class _Device:
    """The methods of Triton's driver that compiling calls."""

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
    """Inside, Triton takes a device of this architecture for the current one."""
    config = triton.runtime.driver
    before = config._active  # none yet, where there is no GPU
    config.set_active(_Device(architecture))
    try:
        yield
    finally:
        config.set_active(before)


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers of a thread, and bytes that it keeps in local memory."""
    text = dump_of(cubin, "-res-usage")
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", text)
    if found is None:
        raise RuntimeError(f"cuobjdump reports no registers: {text!r}")
    registers, stack, local = map(int, found.groups())
    return registers, stack + local


def _waits_for_each(ptx: str, cubin: bytes) -> bool:
    """True when matrix instructions wait for one another: where the assembler cannot prove that sums stay in place, it
    ends a group of instructions after each of them."""
    return len(re.findall(r"HGMMA.*gsb0", dump_of(cubin, "-sass"))) > ptx.count("wgmma.commit_group")
