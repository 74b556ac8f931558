"""Times calls on a device, and measures the two limits with which kernels are compared.

Before each run a buffer much larger than the second-level cache is written, so that no run finds its inputs in the
cache. Writing it takes so long that the timed launches are queued before the device reaches them: the host's part of a
launch does not count. On a CPU (the dry run, in Triton's interpreter) a call is timed once, which only shows that the
code runs."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch

_FLUSH_BYTES = 2 << 30  # takes about a millisecond to write
RUNS, WARM = 15, 3

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    bytes_per_second: float  # bandwidth of a copy: bytes read and bytes written count
    operations_per_second: float  # speed of a bf16 matrix product


class Clock:
    def __init__(self, device: torch.device) -> None:
        self.device, self.real = device, device.type == "cuda"

    def milliseconds(self, call: Call, runs: int = RUNS) -> float:
        """The median of several runs, each with a cold cache."""
        if not self.real:
            began = perf_counter()
            call()
            return (perf_counter() - began) * 1000
        for _ in range(WARM):
            call()
        times, before = list[float](), torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device=self.device)
        for _ in range(runs):
            before.zero_()
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            call()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
        return median(times)

    def limits(self) -> DeviceLimits:
        size, n = (1 << 30, 8192) if self.real else (1 << 20, 128)
        source = torch.randint(256, (size,), dtype=torch.uint8, device=self.device)  # zeros may be faster to move
        target = torch.empty_like(source)
        copied = 2 * size / self.milliseconds(lambda: target.copy_(source)) * 1000
        a = torch.randn(n, n, device=self.device).bfloat16()
        b, out = torch.randn(n, n, device=self.device).bfloat16(), torch.empty_like(a)
        multiplied = 2 * n**3 / self.milliseconds(lambda: torch.mm(a, b, out=out)) * 1000
        return DeviceLimits(copied, multiplied)
