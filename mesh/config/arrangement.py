"""How many workers `baton up` starts on this host, and how many threads each of them has: what the settings leave open
follows from the cores, the memory systems and the memory.

Workers that have fewer than two cores each are one machine: all of them may compute on all cores, the gateway fills one
batch before a second begins, and a prompt leaves decode only when that wins (docs/routing.md, *Shared cores*).
Otherwise each has a share of the cores, and the tiers spread over them."""

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mesh.config.host import memory_bytes

CORES_OF_A_WORKER = 2  # below this number for each of them, workers of one host share all cores
FEWEST, MOST = (1, 2), (2, 2)  # prefill and decode workers where cores are shared, and where they are not
OWN_BYTES = 160 * 1024 * 1024  # memory of a worker besides its pool and the weights, which all workers of a host map
GIB = 1 << 30
MEMORY_SHARE = 0.8  # share of the host's memory that a mesh of default size may need
NODES = Path("/sys/devices/system/node")


@dataclass(frozen=True, slots=True)
class HostMachine:
    cores: int  # that this process may use
    memory_systems: int  # NUMA nodes that have such a core
    memory_bytes: int


@cache
def this_machine() -> HostMachine:
    allowed = os.sched_getaffinity(0)
    lists = [file.read_text() for file in NODES.glob("node[0-9]*/cpulist")]
    return HostMachine(len(allowed), max(1, sum(bool(allowed & cores_of(each)) for each in lists)), memory_bytes())


def cores_of(text: str) -> set[int]:
    """The cores of a list as the kernel writes it: 0-3,8."""
    found = set[int]()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdecimal():
            found |= set(range(int(first), int(last or first) + 1))
    return found


def shares_cores(workers: int, machine: HostMachine) -> bool:
    """Whether `workers` workers on this host compute on the same cores."""
    return workers > 1 and machine.cores < CORES_OF_A_WORKER * workers


def default_workers(machine: HostMachine, *, pool_bytes: int, weights_bytes: int) -> tuple[int, int]:
    """Prefill and decode workers of one model: as many as the cores are good for, and the memory."""
    prefill, decode = workers_for_cores(machine)
    while decode > 1 and _needs(prefill + decode, pool_bytes, weights_bytes) > MEMORY_SHARE * machine.memory_bytes:
        prefill, decode = 1, decode - 1
    return prefill, decode


def workers_for_cores(machine: HostMachine) -> tuple[int, int]:
    """A batch per memory system reads the weights no oftener than it must."""
    prefill, decode = FEWEST if shares_cores(sum(MOST), machine) else MOST
    return prefill, max(decode, min(machine.memory_systems, machine.cores // CORES_OF_A_WORKER))


def _needs(workers: int, pool_bytes: int, weights_bytes: int) -> int:
    return weights_bytes + workers * (pool_bytes + OWN_BYTES)


def threads_of(workers: int, machine: HostMachine) -> int:
    """Compute threads of each of `workers` workers."""
    return machine.cores if shares_cores(workers, machine) else max(1, machine.cores // workers)


def cores_said(cores: int) -> str:
    return "1 core" if cores == 1 else f"{cores} cores"


def reason(prefill: int, decode: int, machine: HostMachine, *, by_machine: bool = False) -> str:
    """The choice for this host and its cause, in one sentence. `by_machine`: no setting says how many workers."""
    workers, threads = prefill + decode, threads_of(prefill + decode, machine)
    said = f"{prefill} prefill + {decode} decode, {threads} thread{'s' * (threads > 1)} each: "
    said += ", ".join(_causes(prefill, decode, machine))
    if by_machine and workers < sum(workers_for_cores(machine)):
        said += f"; {machine.memory_bytes / GIB:.0f} GiB of memory hold no further worker with its pool"
    return said


def _causes(prefill: int, decode: int, machine: HostMachine) -> list[str]:
    workers, cores = prefill + decode, cores_said(machine.cores)
    if workers == 1:
        return [f"one decode worker computes prompts and answers on {cores}"]
    if not shares_cores(workers, machine):
        return [f"{cores} are enough for each worker to have its own, so prompts and answers run side by side"]
    parts = [f"one worker computes at a time on {cores}" if machine.cores < workers else f"they share {cores}"]
    parts.append("one batch is filled before a second begins" if decode > 1 else "decode computes most prompts itself")
    if prefill and decode > 1:
        parts.append("the other workers stand by")
    return parts
