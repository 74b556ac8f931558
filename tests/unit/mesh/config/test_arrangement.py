"""How many workers a host gets, and how many threads each of them has."""

import os

import pytest

from mesh.config.arrangement import (
    HostMachine,
    cores_of,
    default_workers,
    reason,
    shares_cores,
    this_machine,
    threads_of,
)

GIB = 1 << 30
POOL = 256 << 20


def machine(cores: int, *, nodes: int = 1, memory: int = 64 * GIB) -> HostMachine:
    return HostMachine(cores, nodes, memory)


@pytest.mark.parametrize(
    ("cores", "workers", "threads"),
    [(1, (1, 2), 1), (2, (1, 2), 2), (4, (1, 2), 4), (7, (1, 2), 2), (8, (2, 2), 2), (16, (2, 2), 4), (64, (2, 2), 16)],
)
def test_small_machines_share_their_cores_and_large_ones_divide_them(
    cores: int, workers: tuple[int, int], threads: int
) -> None:
    here = machine(cores)
    assert default_workers(here, pool_bytes=POOL, weights_bytes=GIB) == workers
    assert threads_of(sum(workers), here) == threads


def test_each_memory_system_gets_a_batch_where_it_has_cores_for_one() -> None:
    assert default_workers(machine(64, nodes=4), pool_bytes=POOL, weights_bytes=GIB) == (2, 4)
    assert default_workers(machine(4, nodes=4), pool_bytes=POOL, weights_bytes=GIB) == (1, 2)


def test_a_host_with_little_memory_gets_fewer_workers() -> None:
    assert default_workers(machine(2, memory=4 * GIB), pool_bytes=POOL, weights_bytes=GIB) == (1, 2)
    assert default_workers(machine(2, memory=2 * GIB), pool_bytes=POOL, weights_bytes=GIB) == (1, 1)
    assert default_workers(machine(16, memory=2 * GIB), pool_bytes=POOL, weights_bytes=GIB) == (1, 1)


def test_one_worker_alone_shares_with_nobody() -> None:
    assert not shares_cores(1, machine(1)) and threads_of(1, machine(2)) == 2


@pytest.mark.parametrize(
    ("cores", "workers", "words"),
    [
        (2, (1, 2), "1 prefill + 2 decode, 2 threads each: one worker computes at a time on 2 cores, one batch is"),
        (
            4,
            (1, 2),
            "4 threads each: they share 4 cores, one batch is filled before a second begins, the other",
        ),
        (16, (2, 2), "2 prefill + 2 decode, 4 threads each: 16 cores are enough for each worker to have its own"),
        (2, (0, 1), "0 prefill + 1 decode, 2 threads each: one decode worker computes prompts and answers on 2 cores"),
        (2, (1, 1), "decode computes most prompts itself"),
        (1, (1, 2), "1 thread each: one worker computes at a time on 1 core"),
    ],
)
def test_the_reason_names_the_workers_their_threads_and_the_cores(
    cores: int, workers: tuple[int, int], words: str
) -> None:
    assert words in reason(*workers, machine(cores))


def test_a_host_whose_memory_holds_fewer_workers_says_so() -> None:
    small = machine(2, memory=2 * GIB)
    assert reason(1, 1, small, by_machine=True).endswith("; 2 GiB of memory hold no further worker with its pool")
    assert "memory" not in reason(1, 1, small), "a setting has chosen them"
    assert "memory" not in reason(1, 2, small, by_machine=True)
    assert "memory" in reason(1, 1, machine(16, memory=2 * GIB), by_machine=True)


def test_this_machine_has_the_cores_that_this_process_may_use() -> None:
    here = this_machine()
    assert here.cores == len(os.sched_getaffinity(0)) and here.memory_systems >= 1 and here.memory_bytes > 0
    assert cores_of("0-3,8\n") == {0, 1, 2, 3, 8} and cores_of("") == set()
