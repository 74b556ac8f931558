"""How many loads a compiled kernel has under way at once, read from its machine code, where they finally stand.

A loop of dependent loads pays the memory's latency for each; loads that are issued before the first of them is used
share it. The count follows the code as it is laid out, which is a lower bound where branches jump."""

import re

from baton_kernels.triton.launch import Launch
from tests.gpu_gate.compiled import build, dump_of

_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,5}\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9.]+)\s*([^;]*);")
_REGISTER = re.compile(r"(?<![\w.])R(\d+)(\.64)?")


def loads_in_flight(launch: Launch, architecture: int) -> int:
    """The most global loads that are issued before a result of one of them is used."""
    return most_together(dump_of(build(launch, architecture).asm["cubin"], "-sass"))


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
