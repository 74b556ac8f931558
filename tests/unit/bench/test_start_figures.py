"""The figures of `bench.start`: memory by the kind of its mapping, and a miss for everything that may go wrong."""

from dataclasses import replace

import pytest

from bench.start_figures import MIB, Host, Memory, memory_of, misses, report

SMAPS = """\
7f0000000000-7f0040000000 r--s 00000000 fe:00 1234                       /cache/abc-pairs-2.weights
Size:            1048576 kB
Rss:              400000 kB
Pss:              100000 kB
Pss_Dirty:             0 kB
VmFlags: rd mr me ms sd
7f0050000000-7f0060000000 rw-s 00000000 00:01 77                         /memfd:baton-pages (deleted)
Rss:               64000 kB
Pss:               32000 kB
7f0070000000-7f0070001000 rw-p 00000000 00:00 0
Pss:                4000 kB
SwapPss:               0 kB
7f0080000000-7f0080001000 r-xp 00000000 fe:00 99                         /usr/lib/some.weights.so
Pss:                 500 kB
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]
Pss:                  20 kB
"""
WORKER = Memory(weights=200 * MIB, pools=50 * MIB, own=60 * MIB)
HOST = Host(
    workers={"prefill-0": WORKER, "decode-0": replace(WORKER, own=80 * MIB)},
    others={"gateway": Memory(0, 0, 40 * MIB), "up": Memory(0, 0, 30 * MIB)},
    weights_file_bytes=500 * MIB,
    pools_bytes=512 * MIB,
)


def test_memory_is_counted_by_the_name_of_its_mapping() -> None:
    assert memory_of(SMAPS) == Memory(weights=100_000 * 1024, pools=32_000 * 1024, own=4_520 * 1024)


def test_a_report_has_the_median_start_and_the_largest_worker() -> None:
    figures = report([9.0, 2.0, 2.5], [9.5, 2.25, 3.0], HOST)
    assert figures["start_seconds"] == 2.5 and figures["first_answer_seconds"] == 3.0
    assert figures["pss_per_worker_mib"] == 80.0
    assert figures["weights_mib"] == 400.0 and figures["pools_mib"] == 100.0
    assert figures["host_mib"] == 400 + 100 + 60 + 80 + 40 + 30
    assert misses(figures) == []


@pytest.mark.parametrize(
    ("starts", "host", "missed"),
    [
        ([3.1, 3.2, 1.0], HOST, "start_seconds"),
        ([2.0], replace(HOST, workers={"a": WORKER, "b": replace(WORKER, own=191 * MIB)}), "pss_per_worker_mib"),
        ([2.0], replace(HOST, others={"gateway": Memory(0, 0, 900 * MIB)}), "host_mib"),
        ([2.0], replace(HOST, workers={"a": replace(WORKER, weights=0)}), "weights_mib"),
        ([2.0], replace(HOST, weights_file_bytes=300 * MIB), "weights_mib"),
        ([2.0], replace(HOST, pools_bytes=1), "pools_mib"),
    ],
)
def test_each_target_can_be_missed(starts: list[float], host: Host, missed: str) -> None:
    assert any(line.startswith(missed) for line in misses(report(starts, [3.0], host)))
