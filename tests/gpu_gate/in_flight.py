"""How many loads a compiled kernel has on their way at once: read from its machine code, where the compiler has moved
them to in the end.

A loop of dependent loads pays the memory's latency for each; loads that are issued before the first of them is used
share it. Counted along the code as it is laid out: a lower bound where branches jump."""

import re

from baton_kernels.triton.launch import Launch
from tests.gpu_gate.compiled import build, said_of

_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,5}\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9.]+)\s*([^;]*);")
_REGISTER = re.compile(r"(?<![\w.])R(\d+)(\.64)?")


def loads_in_flight(launch: Launch, architecture: int) -> int:
    """The most global loads that are issued before a result of one of them is used."""
    return most_together(said_of(build(launch, architecture).asm["cubin"], "-sass"))


def most_together(code: str) -> int:
    most, waiting, count = 0, set[int](), 0
    for name, operands in _INSTRUCTION.findall(code):
        first, _, rest = operands.partition(",")
        load = name.startswith("LDG")
        read = _registers(rest if load else operands)
        if read & waiting:
            waiting, count = set(), 0
        if load:
            width = 4 if ".128" in name else 2 if ".64" in name else 1
            begin = min(_registers(first))
            waiting |= set(range(begin, begin + width))
            count += 1
            most = max(most, count)
    return most


def _registers(operands: str) -> set[int]:
    found = set[int]()
    for number, double in _REGISTER.findall(operands):
        found |= {int(number), int(number) + bool(double)}
    return found
