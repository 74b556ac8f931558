"""Native code under AddressSanitizer: a library of its own in build/asan, beside the one that the product loads.

The sanitizer must be in the process before Python is, so the command starts itself again with it preloaded. With
`python -m tests.fuzz.asan` a copy writes one word behind a page on purpose: the sanitizer must end that process."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

import baton_kernels
from baton_kernels import build, library

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "build/asan/_baton_kernels.so"
FLAGS = ("-O1", "-g1", "-fno-omit-frame-pointer", "-fsanitize=address", "-fno-sanitize-recover=all")
_LOADED = "BATON_FUZZ_ASAN"
_OPTIONS = "detect_leaks=0:abort_on_error=0:exitcode=99"  # Python keeps what it has until it ends
EXIT_CODE = 99


def is_loaded() -> bool:
    """Does this process run with the sanitizer? Then its native library is the one that is built for it."""
    return _LOADED in os.environ


def run_again(arguments: list[str]) -> int:
    """Run this command in a process with the sanitizer, and return its exit status. Before it the sanitizer shows that
    it finds what it is there for."""
    control = started([], "tests.fuzz.asan", capture=True)
    if control.returncode != EXIT_CODE or "heap-buffer-overflow" not in control.stderr:
        print(f"a write behind a page went unnoticed: status {control.returncode}\n{control.stderr}", file=sys.stderr)
        return 1
    print("a write behind a page on purpose: reported by the sanitizer", file=sys.stderr)
    return started(arguments, "tests.fuzz").returncode


def started(arguments: list[str], module: str, *, capture: bool = False) -> "subprocess.CompletedProcess[str]":
    built()
    environment = os.environ | {
        _LOADED: "1",
        "LD_PRELOAD": runtime(),
        "ASAN_OPTIONS": _OPTIONS,
        "PYTHONMALLOC": "malloc",  # otherwise small objects share memory, and no copy leaves it
    }
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, env=environment, cwd=ROOT, text=True, capture_output=capture)


def built() -> Path:
    """The library with the sanitizer, compiled when a source is newer: a minute."""
    sources = [path for path in (build.HERE / "cpu").iterdir() if path.suffix in (".cpp", ".h")]
    newest = max(path.stat().st_mtime for path in (*sources, Path(build.__file__)))
    if not LIBRARY.exists() or LIBRARY.stat().st_mtime < newest:
        LIBRARY.parent.mkdir(parents=True, exist_ok=True)
        compile_sanitized(newest)
    return LIBRARY


def compile_sanitized(newest: float) -> None:
    """Compile the sources whose objects are older than `newest`, the time of the last change, one after the other."""
    objects, commands = LIBRARY.parent, list[list[str]]()
    flags = [flag for flag in build.FLAGS if flag != "-O3"] + [*FLAGS, "-w", '-DBATON_SOURCES="sanitized"']
    chosen = build.sources(build.bodies_here())
    for source in chosen:
        march = build.march(source.name)
        commands.append([build.compiler(), *flags, *march, "-c", str(source), "-o", f"{objects}/{source.stem}.o"])
    for command in commands:
        object_file = Path(command[-1])
        if not object_file.exists() or object_file.stat().st_mtime < newest:
            subprocess.run(command, check=True)
    made = [f"{objects}/{source.stem}.o" for source in chosen]
    linked = LIBRARY.with_suffix(".tmp")
    subprocess.run(
        [build.compiler(), "-shared", "-pthread", "-fsanitize=address", *made, "-o", str(linked)], check=True
    )
    build.seal(linked)
    linked.replace(LIBRARY)


def runtime() -> str:
    """The sanitizer's library, and C++'s: it must be there when the sanitizer begins."""
    names = ("libasan.so", "libstdc++.so")
    found = (subprocess.check_output([build.compiler(), f"-print-file-name={name}"], text=True) for name in names)
    return " ".join(str(Path(path.strip()).resolve()) for path in found)


def write_behind_a_page() -> None:
    """A copy whose length is one word too large, as it would be if a span's bounds were not checked."""
    source, target = np.zeros(4096 + 8, np.uint8), np.zeros(4096, np.uint8)
    places = [np.array([memory.ctypes.data], np.int64) for memory in (target, source)]
    baton_kernels.scatter(*places, 4096 + 8, np.zeros(1, np.int64), np.zeros(1, np.uint64))


if is_loaded():
    library._FILE = LIBRARY

if __name__ == "__main__":
    if not is_loaded():
        sys.exit(started([], "tests.fuzz.asan").returncode)
    write_behind_a_page()
