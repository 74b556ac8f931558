"""Compiles the native library next to the package: by `python -m baton_kernels.build`, and at install (hatch_build.py).

One g++ per file, in parallel, each with the instruction set its kernels need; the library decides when it is
loaded which of them run. The compiler must never contract or reorder a product, so `-ffast-math` is not used."""

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIBRARY = HERE / "_baton_kernels.so"
FLAGS = ("-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fPIC", "-fvisibility=hidden", "-pthread")
WARNINGS = (
    "-Wall",
    "-Wextra",
    "-Wno-maybe-uninitialized",
    "-Wno-uninitialized",
    "-Wno-psabi",
)  # GCC 12 misreads its own headers
DEFAULT_MARCH = ("-march=x86-64-v3",)
# The loops of the plain body vectorize as well at -O1. -O3 unrolls them first and compiles as long as all other files.
LIGHT = {"body_plain.cpp": ("-O1", "-ftree-vectorize", "-ftree-slp-vectorize")}
MARCH = {
    "dispatch.cpp": (),  # decides whether anything newer may run
    "pool.cpp": (),
    "limits.cpp": (),
    "body_avx512.cpp": ("-march=x86-64-v4",),
    "body_avx512bf16.cpp": ("-march=x86-64-v4", "-mavx512bf16"),
    "body_amx.cpp": ("-march=x86-64-v4", "-mamx-tile", "-mamx-bf16"),
}


class BuildError(Exception):
    """The library was not built; the message says why and what to do."""


def compiler() -> str:
    """Returns the path of the C++ compiler, or raises a BuildError."""
    found = shutil.which(os.environ.get("CXX", "g++"))
    if found is None:
        raise BuildError(
            "no C++ compiler found: install g++ 11 or newer (or set CXX), then run `python -m baton_kernels.build`"
        )
    return found


def sources() -> list[Path]:
    return sorted((HERE / "cpu").glob("*.cpp"))


def up_to_date() -> bool:
    """The library is there and is newer than everything that it is made from."""
    made_from = (Path(__file__), *(HERE / "cpu").iterdir())
    return LIBRARY.exists() and LIBRARY.stat().st_mtime > max(path.stat().st_mtime for path in made_from)


def build_once() -> Path:
    """Build the library unless it is up to date. Of several processes that ask for it, one builds, the others wait."""
    with LIBRARY.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return LIBRARY if up_to_date() else build()


def build(target: Path = LIBRARY, extra: tuple[str, ...] = ()) -> Path:
    """Compiles and links to `target`, which appears whole or not at all."""
    if sysconfig.get_platform() not in ("linux-x86_64",):
        raise BuildError(f"the CPU kernels are for Linux on x86-64, this is {sysconfig.get_platform()}")
    cxx = compiler()
    with tempfile.TemporaryDirectory() as folder:
        objects = [Path(folder, source.stem + ".o") for source in sources()]
        # the slowest files first
        jobs = sorted(zip(sources(), objects, strict=True), key=lambda job: not job[0].name.startswith("body_"))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda job: _run([cxx, *FLAGS, *WARNINGS, *LIGHT.get(job[0].name, ()),
                                            *MARCH.get(job[0].name, DEFAULT_MARCH), *extra,
                                            "-c", str(job[0]), "-o", str(job[1])]), jobs))  # fmt: skip
        linked = target.with_suffix(f".{os.getpid()}.tmp")
        _run([cxx, "-shared", "-pthread", *extra, *map(str, objects), "-o", str(linked)])
        linked.replace(target)
    return target


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
    if done.stderr:
        print(done.stderr, file=sys.stderr)


if __name__ == "__main__":
    try:
        print(f"built {build_once()}")
    except BuildError as error:
        sys.exit(str(error))
