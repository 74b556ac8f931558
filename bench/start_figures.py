"""The figures of `bench.start`: start times, memory by what it is used for, and missed targets.

A host holds the packed weights once and each worker's pool once, however many processes map them, so memory is counted
in PSS: a page that three processes map counts a third for each. The kernel's name of a mapping shows whether it is
weights or a pool; all other memory is the process's own."""

import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

START_SECONDS = 3.0
WORKER_MB = 200.0  # beside weights and pools
MIB = 1 << 20

_MAPPING = re.compile(r"[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \d+ *(?P<name>.*)")
_PSS = re.compile(r"Pss: +(\d+) kB")


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of one process, in bytes of PSS."""

    weights: int
    pools: int
    own: int


@dataclass(frozen=True, slots=True)
class Host:
    """Memory of a running mesh, and the sizes of what it maps."""

    workers: Mapping[str, Memory]
    others: Mapping[str, Memory]  # the gateway and `up` itself
    weights_file_bytes: int
    pools_bytes: int  # sum of all pools

    def total(self, part: str) -> int:
        return sum(getattr(memory, part) for memory in (*self.workers.values(), *self.others.values()))


def memory_of(smaps: str) -> Memory:
    """Memory of a process from the text of its /proc/PID/smaps."""
    counts: Counter[str] = Counter()
    kind = "own"
    for line in smaps.splitlines():
        if mapping := _MAPPING.fullmatch(line):
            kind = _kind(mapping["name"])
        elif pss := _PSS.fullmatch(line):
            counts[kind] += int(pss[1]) * 1024
    return Memory(counts["weights"], counts["pools"], counts["own"])


def _kind(name: str) -> str:
    if name.endswith(".weights"):
        return "weights"
    return "pools" if name.startswith("/memfd:baton-pages") else "own"


def report(starts_seconds: Sequence[float], first_answer_seconds: Sequence[float], host: Host) -> dict[str, Any]:
    own = {name: memory.own / MIB for name, memory in host.workers.items()}
    allowed = host.weights_file_bytes + host.pools_bytes + len(host.workers) * WORKER_MB * 1e6
    return {
        "start_seconds": round(statistics.median(starts_seconds), 3),
        "start_seconds_of_runs": [round(seconds, 3) for seconds in starts_seconds],
        "first_answer_seconds": round(statistics.median(first_answer_seconds), 3),
        "pss_per_worker_mib": round(max(own.values()), 1),
        "pss_mib": {name: round(mib, 1) for name, mib in own.items()}
        | {name: round(memory.own / MIB, 1) for name, memory in host.others.items()},
        "weights_mib": round(host.total("weights") / MIB, 1),
        "weights_file_mib": round(host.weights_file_bytes / MIB, 1),
        "pools_mib": round(host.total("pools") / MIB, 1),
        "pools_allowed_mib": round(host.pools_bytes / MIB, 1),
        "host_mib": round((host.total("weights") + host.total("pools") + host.total("own")) / MIB, 1),
        "host_allowed_mib": round(allowed / MIB, 1),
    }


def misses(figures: Mapping[str, Any]) -> list[str]:
    worker_mib = WORKER_MB * 1e6 / MIB
    missed = []
    if figures["start_seconds"] > START_SECONDS:
        missed.append(f"start_seconds {figures['start_seconds']}, target at most {START_SECONDS}")
    if figures["pss_per_worker_mib"] > worker_mib:
        missed.append(f"pss_per_worker_mib {figures['pss_per_worker_mib']}, target at most {worker_mib:.1f} (200 MB)")
    if figures["host_mib"] > figures["host_allowed_mib"]:
        missed.append(f"host_mib {figures['host_mib']}, target at most {figures['host_allowed_mib']}")
    for mapped, whole in (("weights_mib", "weights_file_mib"), ("pools_mib", "pools_allowed_mib")):
        if not 0 < figures[mapped] <= figures[whole]:  # nothing mapped, nothing measured
            missed.append(f"{mapped} {figures[mapped]} is not within 0 and {figures[whole]}: the mapping was not found")
    return missed
