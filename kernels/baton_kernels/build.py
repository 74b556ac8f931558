"""Compiles the native library next to the package: by `python -m baton_kernels.build`, and at install (hatch_build.py).

One g++ per file, in parallel, each with the instruction set its kernels need; the library decides when it is loaded
which of them run. A file whose name ends with a machine's is compiled for that one alone, and so is a body (BODIES_OF).
With `--here` only the bodies that this processor runs are compiled; a library that comes to another processor says
which body it lacks. The compiler must never contract or reorder a product: hence no `-ffast-math`.

Object files are kept in `.objects`, each by what it is made of: who changes a file compiles what includes it, and a
build of more bodies compiles those that are missing.

The build ends with a seal behind the library's last byte: a digest of all bytes before it. A library whose bytes change
later no longer fits its seal, and `library.py` does not load it."""

import contextlib
import ctypes
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIBRARY = HERE / "_baton_kernels.so"
OBJECTS = HERE / ".objects"
KEPT = 100  # object files, those that were used last
SEAL = b"\nbaton-kernels seal "  # the digest follows, then a line break; `library.py` reads it
MACHINE = sysconfig.get_platform().removeprefix("linux-").replace("-", "_")
BODIES_OF = {
    "x86_64": ("plain", "avx2", "avx512", "avx512bf16", "amx", "avx512vnni", "tiles"),
    "aarch64": ("plain", "neon"),
}
BODIES = BODIES_OF.get(MACHINE, ("plain",))
FLAGS = (
    "-std=c++17",
    "-O3",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fsigned-char",
    "-fPIC",
    "-fvisibility=hidden",
    "-pthread",
)
WARNINGS = (
    "-Wall",
    "-Wextra",
    "-Wno-maybe-uninitialized",
    "-Wno-uninitialized",
    "-Wno-psabi",
)  # GCC 12 misreads its own headers
DEFAULT_MARCH = {"x86_64": ("-march=x86-64-v3",), "aarch64": ("-march=armv8-a",)}
# The loops of the plain body vectorize as well at -O1. -O3 unrolls them first and compiles as long as all other files.
LIGHT = {"body_plain.cpp": ("-O1", "-ftree-vectorize", "-ftree-slp-vectorize", "-fno-tree-sra")}
MARCH = {
    "dispatch.cpp": (),  # decides whether anything newer may run
    "pool.cpp": (),
    "limits.cpp": (),
    "machine_x86_64.cpp": (),
    "limits_x86_64.cpp": (),
    "body_avx512.cpp": ("-march=x86-64-v4",),
    "body_avx512vnni.cpp": ("-march=x86-64-v4", "-mavx512vnni"),
    "body_avx512bf16.cpp": ("-march=x86-64-v4", "-mavx512bf16"),
    "body_amx.cpp": ("-march=x86-64-v4", "-mamx-tile", "-mamx-bf16", "-mamx-int8"),
    "body_neon.cpp": ("-march=armv8.2-a+dotprod",),
}
# With libstdc++ inside, the library runs beside older ones, and its wheel on older systems. Where the compiler has no
# archive of it, the library needs the system's.
STATIC = ("-static-libstdc++", "-Wl,--exclude-libs,ALL", "-Wl,--gc-sections")


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


def bodies_here(cpuinfo: Path = Path("/proc/cpuinfo"), machine: str = MACHINE) -> tuple[str, ...]:
    """The bodies that this processor runs, and the plain one that they are compared with."""
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    named = [line for line in lines if line.startswith(("flags", "Features"))]
    flags = {flag for line in named for flag in line.partition(":")[2].split()}
    if machine == "aarch64":
        return ("plain", "neon") if "asimddp" in flags else ("plain",)
    wide = {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"} <= flags
    return (
        "plain",
        *(("avx512",) if wide else ("avx2",)),
        *(("avx512bf16",) if wide and "avx512_bf16" in flags else ()),
        *(("avx512vnni",) if wide and "avx512_vnni" in flags else ()),
        *(("amx",) if wide and {"amx_tile", "amx_bf16", "amx_int8"} <= flags else ()),
    )


def sources(bodies: Collection[str] = BODIES, machine: str = MACHINE) -> list[Path]:
    """The files of these bodies, and all others but those that end with the name of another machine."""
    left_out = {f"body_{body}.cpp" for each in BODIES_OF.values() for body in each if body not in bodies}
    others = tuple(f"_{other}.cpp" for other in BODIES_OF if other != machine)
    files = (HERE / "cpu").glob("*.cpp")
    return sorted(path for path in files if path.name not in left_out and not path.name.endswith(others))


def march(name: str, machine: str = MACHINE) -> tuple[str, ...]:
    """The options that say which instructions a file may use."""
    return MARCH.get(name, DEFAULT_MARCH[machine])


def compile_command(cxx: str, source: Path, target: Path, machine: str = MACHINE) -> list[str]:
    """The command that compiles a source into an object file."""
    return [cxx, *options(source, machine), "-c", str(source), "-o", str(target)]


def options(source: Path, machine: str = MACHINE) -> list[str]:
    """The compiler's options for a source. One file names the sources that the library is made of."""
    named = [f'-DBATON_SOURCES="{source_digest()}"'] if "BATON_SOURCES" in source.read_text() else []
    return [*FLAGS, *WARNINGS, *LIGHT.get(source.name, ()), *march(source.name, machine), *named]


def included(source: Path) -> list[Path]:
    """The file and all that it includes, those of the system excepted."""
    found = [source]
    for file in found:
        names = re.findall(r'^#include "(.+)"', file.read_text(), re.MULTILINE)
        found.extend(path for name in names if (path := file.parent / name) not in found and path.exists())
    return found


def compiled(cxx: str, version: str, source: Path) -> Path:
    """The object file of a source, kept from an earlier build where nothing that it is made of has changed."""
    made_of = hashlib.blake2b(repr((cxx, version, options(source))).encode(), digest_size=16)
    for file in included(source):
        made_of.update(f"\n{file.name} {file.stat().st_size}\n".encode() + file.read_bytes())
    target = OBJECTS / f"{source.stem}-{made_of.hexdigest()}.o"
    try:
        os.utime(target)
    except OSError:
        OBJECTS.mkdir(exist_ok=True)
        own = target.with_suffix(f".{os.getpid()}.o")
        run(compile_command(cxx, source, own))
        own.replace(target)
    return target


def forget_old_objects() -> None:
    """Removes the kept object files but for those that were used last."""
    ages = dict[Path, int]()
    for file in OBJECTS.glob("*.o"):
        with contextlib.suppress(OSError):  # another build has removed it
            ages[file] = file.stat().st_mtime_ns
    for file in sorted(ages, key=ages.__getitem__)[:-KEPT]:
        file.unlink(missing_ok=True)


def source_digest() -> str:
    """Digest of all machines' sources and flags, whatever is compiled: part of the numerics class of every worker."""
    digest = hashlib.blake2b(repr((FLAGS, DEFAULT_MARCH, LIGHT, MARCH)).encode(), digest_size=16)
    for path in sorted((HERE / "cpu").iterdir()):
        if path.suffix in (".cpp", ".h"):
            digest.update(f"\n{path.name} {path.stat().st_size}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def up_to_date(bodies: Collection[str] = BODIES) -> bool:
    """The library is there, has these bodies, fits its seal, and is newer than everything that it is made from."""
    made_from = (Path(__file__), *(HERE / "cpu").iterdir())
    if not LIBRARY.exists() or LIBRARY.stat().st_mtime <= max(path.stat().st_mtime for path in made_from):
        return False
    return set(bodies) <= set(built(LIBRARY)) and sealed(LIBRARY)


def built(library: Path) -> tuple[str, ...]:
    """The bodies in a library: each exports a symbol with its name. Nothing is loaded."""
    data = library.read_bytes()
    return tuple(body for body in BODIES if f"\0baton_has_{body}\0".encode() in data)


def seal(library: Path) -> None:
    """Writes the digest of a library's bytes behind them. The system's loader ignores what follows an ELF file."""
    with library.open("ab") as file:
        file.write(SEAL + _digest(library.read_bytes()) + b"\n")


def sealed(library: Path) -> bool:
    """Whether the library has the bytes that were sealed."""
    data, _, digest = library.read_bytes().rpartition(SEAL)
    return digest == _digest(data) + b"\n"


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).hexdigest().encode()


def build_once(bodies: Collection[str] = BODIES) -> Path:
    """Build the library unless it is up to date. Of several processes that ask for it, one builds, the others wait."""
    with LIBRARY.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return LIBRARY if up_to_date(bodies) else build(bodies=bodies)


def build(target: Path = LIBRARY, *, bodies: Collection[str] = BODIES) -> Path:
    """Compiles and links to `target`, which appears whole or not at all."""
    if sysconfig.get_platform() != f"linux-{MACHINE}" or MACHINE not in BODIES_OF:
        raise BuildError(f"the CPU kernels are for Linux on x86-64 and aarch64, this is {sysconfig.get_platform()}")
    cxx = compiler()
    version = subprocess.run([cxx, "--version"], capture_output=True, text=True).stdout
    # the slowest files first
    chosen = sorted(sources(bodies), key=lambda source: not source.name.startswith("body_"))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(lambda source: compiled(cxx, version, source), chosen))
    with tempfile.TemporaryDirectory() as folder:
        linked = Path(folder, "linked.so")
        link = [cxx, "-shared", "-pthread", *map(str, objects), "-o", str(linked)]
        try:
            run([*link, *STATIC])
        except BuildError:
            run(link)
        if set(bodies) < set(BODIES) and ctypes.CDLL(str(linked)).baton_missing() >= 0:
            return build(target)  # the processor runs more than the system says
        whole = target.with_suffix(f".{os.getpid()}.tmp")
        shutil.copy(linked, whole)
        seal(whole)
        whole.replace(target)
    forget_old_objects()
    return target


def run(command: list[str]) -> None:
    """Runs a compiler; BuildError with its words if it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
    if done.stderr:
        print(done.stderr, file=sys.stderr)


if __name__ == "__main__":
    try:
        wanted = bodies_here() if sys.argv[1:] == ["--here"] else BODIES
        print(f"built {build_once(wanted)} with {', '.join(built(LIBRARY))}")
    except BuildError as error:
        sys.exit(str(error))
