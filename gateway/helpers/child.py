"""The life of a child process that gateway/helpers/process.py starts: it answers one task after the other, from a pipe.

Its command line names a function, `MODULE:NAME`, which prepares the child and returns the function that answers. The
child ends when the pipe closes, and by itself after a task that took much memory, so that the memory goes back. Both
directions carry messages of byte strings, its parts: a line with their sizes, then the parts."""

import sys
from collections.abc import Callable
from importlib import import_module
from io import FileIO
from typing import IO

KEPT_KIB = 512 * 1024  # peak memory; a child that has needed more ends
HEAD_BYTES = 64  # longest line of sizes

Answering = Callable[..., bytes]  # takes the parts of a task


def serve(answer: Answering, source: IO[bytes], target: IO[bytes]) -> None:
    with open("/proc/self/status", "rb", buffering=0) as status:  # now: a child may give up opening files
        while (task := read_message(source)) is not None:
            write_message(target, answer(*task))
            del task
            if _peak_kib(status) > KEPT_KIB:
                return


def write_message(target: IO[bytes], *parts: bytes) -> None:
    target.write(b" ".join(b"%d" % len(part) for part in parts) + b"\n")
    for part in parts:
        target.write(part)
    target.flush()


def read_message(source: IO[bytes], most_bytes: int | None = None) -> list[bytes] | None:
    """The parts; None if the other end has closed, or sends more than `most_bytes` or no message."""
    head = source.readline(HEAD_BYTES).split()
    if not head or not all(size.isdigit() for size in head):
        return None
    sizes = [int(size) for size in head]
    if most_bytes is not None and sum(sizes) > most_bytes:
        return None
    parts = [source.read(size) for size in sizes]
    return parts if [len(part) for part in parts] == sizes else None


def _peak_kib(status: FileIO) -> int:
    """Peak memory of this program; getrusage would begin with that of the process that started it."""
    status.seek(0)
    return int(status.read().partition(b"VmHWM:")[2].split(maxsplit=1)[0])


def main() -> None:
    module, _, name = sys.argv[1].partition(":")
    serve(getattr(import_module(module), name)(), sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
