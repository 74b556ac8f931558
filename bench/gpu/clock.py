"""Times on a device, and the two limits that kernels are compared with, measured when they are needed.

Between two runs a buffer larger than the second-level cache is written, so that no run finds its inputs there. On a CPU
(the dry run, in Triton's interpreter) a call is timed once: it shows that the code runs and nothing else."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch

_FLUSH_BYTES = 256 * 1024 * 1024
RUNS, WARM = 15, 3

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Limits:
    bytes_per_second: float  # of a copy, read and written bytes counted
    operations_per_second: float  # of a bf16 matrix product


class Clock:
    def __init__(self, device: torch.device) -> None:
        self.device, self.real = device, device.type == "cuda"
        self._flush = torch.empty(_FLUSH_BYTES if self.real else 1, dtype=torch.uint8, device=device)

    def milliseconds(self, call: Call, runs: int = RUNS) -> float:
        """The median of some runs, none of which finds its inputs in the cache."""
        if not self.real:
            began = perf_counter()
            call()
            return (perf_counter() - began) * 1000
        for _ in range(WARM):
            call()
        times = list[float]()
        for _ in range(runs):
            self._flush.zero_()
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            call()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
        return median(times)

    def limits(self) -> Limits:
        size, n = (1 << 30, 8192) if self.real else (1 << 20, 128)
        source = torch.zeros(size, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        copied = 2 * size / self.milliseconds(lambda: target.copy_(source)) * 1000
        a = torch.randn(n, n, device=self.device).bfloat16()
        b, out = torch.randn(n, n, device=self.device).bfloat16(), torch.empty_like(a)
        multiplied = 2 * n**3 / self.milliseconds(lambda: torch.mm(a, b, out=out)) * 1000
        return Limits(copied, multiplied)
