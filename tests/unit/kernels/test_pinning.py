"""Pinned threads stay on their cores, others run on any core."""

import os
from pathlib import Path

import numpy as np
import pytest

import baton_kernels as bk


def tasks() -> dict[str, str]:
    """The cores on which each thread of this process may run, by thread id."""
    found = {}
    for status in Path("/proc/self/task").glob("*/status"):
        lines = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
        found[lines["Pid"]] = lines["Cpus_allowed_list"]
    return found


def started(count: int, cores: tuple[int, ...] = ()) -> list[str]:
    """The cores on which each of the pool's own threads may run, after all of them have computed."""
    bk.set_threads(1)
    before = tasks()
    bk.set_threads(count, cores)
    x = np.ones((256, 4096), np.float32)
    for _ in range(20):
        bk.rmsnorm(x, np.ones(4096, np.float32), 1e-6, np.empty_like(x))
    return [allowed for thread, allowed in tasks().items() if thread not in before]


def test_pinned_threads_stay_on_the_cores_they_were_given():
    last = max(os.sched_getaffinity(0))
    assert started(3, (last, last, last)) == [str(last)] * 2


def test_threads_without_cores_run_anywhere_even_after_pinned_ones():
    """On a machine of one core it shows that they run; that they were pinned before is seen with two."""
    last, anywhere = max(os.sched_getaffinity(0)), tasks()[str(os.getpid())]
    started(3, (last, last, last))
    assert started(3) == [anywhere] * 2


def test_cores_that_are_too_few_or_not_ours_are_refused():
    with pytest.raises(bk.KernelError, match="cores"):
        bk.set_threads(2, (0,))
    with pytest.raises(bk.KernelError, match=r"cores: .*9999"):
        bk.set_threads(2, (9999, 9999))
