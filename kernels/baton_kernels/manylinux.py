"""The lowest manylinux tag that a shared library honestly bears, read from its ELF headers: `hatch_build.py` tags the
wheel with it.

A library names the symbol versions that it needs (GLIBC_2.34 of libc.so.6). PEP 600 lets a wheel bear manylinux_2_X if
every system with glibc 2.X or newer has all of them. A library that needs anything else bears no such tag."""

import re
import struct
import sys
from pathlib import Path

# What every Linux with glibc has, and the version of glibc beside which each of libstdc++'s symbol versions came.
# Systems of one glibc differ in their libstdc++: the table holds what all of them have, as auditwheel's policies do.
SYSTEM = {
    "ld-linux-aarch64.so.1",
    "ld-linux-x86-64.so.2",
    "libc.so.6",
    "libdl.so.2",
    "libgcc_s.so.1",
    "libm.so.6",
    "libpthread.so.0",
    "librt.so.1",
    "libstdc++.so.6",
}
OLDEST = (2, 17)
BESIDE: dict[str, tuple[tuple[tuple[int, ...], int], ...]] = {
    "GLIBCXX": (((3, 4, 19), 17), ((3, 4, 24), 28), ((3, 4, 28), 31), ((3, 4, 29), 34), ((3, 4, 30), 35)),
    "CXXABI": (((1, 3, 7), 17), ((1, 3, 11), 28), ((1, 3, 12), 31), ((1, 3, 13), 34)),
    "GCC": (((4, 8, 0), 17), ((7, 0, 0), 28), ((12, 0, 0), 35)),
}

MACHINES = {62: "x86_64", 183: "aarch64"}  # by the number in the ELF header

_STRTAB, _NEEDED, _VERNEED, _VERNEEDNUM = 5, 1, 0x6FFFFFFE, 0x6FFFFFFF
_LOAD, _DYNAMIC = 1, 2


class NotPortable(Exception):
    """The library bears no manylinux tag; the message names what it needs."""


def tag(library: Path) -> str:
    """manylinux_2_X_x86_64 or manylinux_2_X_aarch64, or NotPortable."""
    return tag_for(needs(library), machine_of(library))


def tag_for(needed: dict[str, set[str]], machine: str = "x86_64") -> str:
    """The tag for these libraries and their symbol versions."""
    if unknown := sorted(set(needed) - SYSTEM):
        raise NotPortable(f"it needs {', '.join(unknown)}, which not every system has")
    minor = max((_minor(version) for versions in needed.values() for version in versions), default=0)
    return f"manylinux_2_{max(minor, OLDEST[1])}_{machine}"


def machine_of(library: Path) -> str:
    """The machine for which the library is compiled."""
    data = library.read_bytes()[:20]
    machine = MACHINES.get(struct.unpack_from("<H", data, 18)[0]) if data[:6] == b"\x7fELF\x02\x01" else None
    if machine is None:
        raise NotPortable(f"{library} is no ELF file for x86-64 or aarch64")
    return machine


def _minor(version: str) -> int:
    """The 2.X of glibc beside which every system has this symbol version."""
    name, _, text = version.partition("_")
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)+", text):
        raise NotPortable(f"it needs the symbol version {version}, which is private or unknown")
    number = tuple(map(int, text.split(".")))
    if name == "GLIBC" and number[0] == 2:
        return number[1]
    for newest, minor in BESIDE.get(name, ()):
        if number <= newest:
            return minor
    raise NotPortable(f"it needs the symbol version {version}, which is newer than every system that is known here")


def needs(library: Path) -> dict[str, set[str]]:
    """The libraries that this one needs, and the symbol versions of each."""
    machine_of(library)
    data = library.read_bytes()
    offset, _, _, _, size, count = struct.unpack_from("<QQIHHH", data, 32)
    segments = [struct.unpack_from("<IIQQQQ", data, offset + i * size) for i in range(count)]

    def place(address: int) -> int:
        """Where in the file the byte lies that is loaded at this address."""
        for kind, _, at, begin, _, length in segments:
            if kind == _LOAD and begin <= address < begin + length:
                return int(address - begin + at)
        raise NotPortable(f"{library} is damaged: no segment holds address {address:#x}")

    dynamic: list[tuple[int, int]] = []
    for kind, _, at, _, _, length in segments:
        if kind == _DYNAMIC:
            dynamic = list(struct.iter_unpack("<qQ", data[at : at + length]))
    table = dict(reversed(dynamic))
    strings = place(table[_STRTAB])

    def text(index: int) -> str:
        return data[strings + index : data.index(b"\0", strings + index)].decode()

    found: dict[str, set[str]] = {text(value): set() for kind, value in dynamic if kind == _NEEDED}
    at = place(table[_VERNEED]) if _VERNEED in table else 0
    for _ in range(table.get(_VERNEEDNUM, 0)):
        _, entries, file, first, following = struct.unpack_from("<HHIII", data, at)
        entry = at + first
        for _ in range(entries):
            _, _, _, name, behind = struct.unpack_from("<IHHII", data, entry)
            found.setdefault(text(file), set()).add(text(name))
            entry += behind
        at += following
    return found


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(tag(Path(argument)))
