"""The kernel library of another machine, called from this process: each call runs under an emulator.

`Emulated` starts `driver.cpp` there and makes each function of the library a message to it. The driver asks for the
pages that a call touches and returns the bytes that it changed, so the package, its self-test and its tests run as
they are, with the other machine's bodies."""

import ctypes
import os
import struct
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from baton_kernels import library

PAGE, PAGES = 4096, 16  # a block is what the driver asks for at a time
MOST_INTS, MOST_FLOATS = 40, 8
CALL = struct.Struct(f"<32s8s{MOST_INTS}q{MOST_FLOATS}f")


class DriverEnded(Exception):
    """The driver has ended before its answer: a fault of the library, or of this tool."""


class Emulated:
    """A library that runs under an emulator. `command`: the emulator with its options."""

    def __init__(self, command: Sequence[str], driver: Path, built: Path) -> None:
        whole = [*command, str(driver), str(built)]
        self._process = subprocess.Popen(whole, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._memory = os.open("/proc/self/mem", os.O_RDWR)

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process.wait()
        os.close(self._memory)

    def call(self, name: str, signature: str, *arguments: Any) -> Any:
        """Returns the result of the function of this name; what it writes stands in this process's memory."""
        result, *kinds = signature
        ints = [_number(each) for kind, each in zip(kinds, arguments, strict=True) if kind != "f"]
        floats = [float(each) for kind, each in zip(kinds, arguments, strict=True) if kind == "f"]
        ints += [0] * (MOST_INTS - len(ints))
        floats += [0.0] * (MOST_FLOATS - len(floats))
        self._send(CALL.pack(f"baton_{name}".encode(), result.encode(), *ints, *floats))
        while self._receive(1) == b"F":
            self._send_block(*struct.unpack("<q", self._receive(8)))
        raw = self._receive(8)
        (length,) = struct.unpack("<q", self._receive(8))
        text = self._receive(length) if length >= 0 else None
        while address := struct.unpack("<q", self._receive(8))[0]:
            (size,) = struct.unpack("<q", self._receive(8))
            os.pwrite(self._memory, self._receive(size), address)
        if result == "m":
            return text
        kind = {"i": "<i4x", "q": "<q", "Q": "<Q", "d": "<d", "-": "<8x"}[result]
        return next(iter(struct.unpack(kind, raw)), None)

    def _send_block(self, at: int) -> None:
        """Those pages of the block that exist, behind a bit for each."""
        pages = [self._page(at + PAGE * number) for number in range(PAGES)]
        present = sum(1 << number for number, page in enumerate(pages) if page)
        self._send(struct.pack("<Q", present) + b"".join(pages))

    def _page(self, at: int) -> bytes:
        try:
            return os.pread(self._memory, PAGE, at)
        except OSError:
            return b""

    def _send(self, data: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data)
            self._process.stdin.flush()
        except BrokenPipeError:
            raise DriverEnded(f"status {self._process.wait()}") from None

    def _receive(self, size: int) -> bytes:
        assert self._process.stdout is not None
        data = self._process.stdout.read(size)
        if len(data) < size:
            raise DriverEnded(f"status {self._process.wait()}")
        return data


@contextmanager
def emulated(command: Sequence[str], driver: Path, built: Path) -> Iterator[None]:
    """Within it, the package calls the other machine's library."""
    own, other = library.load(), Emulated(command, driver, built)
    before = dict(vars(own))
    try:
        for name, signature in library.SIGNATURES.items():
            setattr(own, name, partial(other.call, name, signature))
        yield
    finally:
        vars(own).update(before)
        other.close()


def _number(argument: Any) -> int:
    """An integer, or the address of what ctypes would pass."""
    if argument is None:
        return 0
    if isinstance(argument, ctypes.Array | ctypes.Structure):
        return ctypes.addressof(argument)
    if hasattr(argument, "_obj"):  # byref
        return ctypes.addressof(argument._obj)
    number = int(argument)
    return number - (1 << 64) if number >= 1 << 63 else number
