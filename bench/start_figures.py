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

from bench.command import missed

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
    most = {"start_seconds": START_SECONDS, "pss_per_worker_mib": WORKER_MB * 1e6 / MIB}
    wholes = {"host_mib": "host_allowed_mib", "weights_mib": "weights_file_mib", "pools_mib": "pools_allowed_mib"}
    nothing = [f"{name} is 0: the mapping was not found" for name in ("weights_mib", "pools_mib") if not figures[name]]
    return missed(figures, most=most | {name: figures[whole] for name, whole in wholes.items()}) + nothing
