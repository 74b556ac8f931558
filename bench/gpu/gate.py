"""Section `gate`: all programs for this device's architecture, compiled by all cores and kept in Triton's cache.

It is the first section: a refused program need not be measured, and the other sections and later workers find every
program compiled."""

from time import perf_counter

from baton_kernels.triton.launch import architecture_of
from bench.gpu.clock import Clock
from bench.gpu.figures import Figure, note, show
from tests.gpu_gate.aot import cores, gate, refusals


def measure(clock: Clock) -> None:
    if not clock.real:
        return note("nothing was compiled: here the kernels are interpreted")
    began = perf_counter()
    done = gate([architecture_of(clock.device.index)], small=False, processes=cores(), keep=True)
    show(Figure("programs compiled", len(done), f"in {perf_counter() - began:.0f} s by {cores()} cores"))
    refused = refusals(done)
    for line in refused:
        note(line)
    show(Figure("programs refused", len(refused), f"of {len(done)}", at_most=0))
