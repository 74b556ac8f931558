"""Transports are measured between two real processes, here over a few spans: what is checked is that they arrive."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bench import transport as bench_transport
from bench.raw_tcp import RawTcpFailed, raw_tcp
from cli.doctoring import doctor, transport_speed
from cli.doctoring.transport_speed import SpeedFigures, TransportFigures, measure, receiving_process
from cli.local_mesh.ports import free_address
from kvtransfer.transfer import TransferError
from mesh.config.services import GatewayConfig
from mesh.config.worker_config import DecodeConfig

SPAN, SPANS = 16 << 10, 5


async def test_every_transport_moves_all_spans_and_each_pass_stands_beside_memcpy() -> None:
    rounds: list[int] = []
    async with receiving_process() as peer:
        for span in (SPAN, 2 * SPAN):  # the other process opens another pool for each size
            figures = await measure(
                peer,
                ["shm", "tcp"],
                span_bytes=span,
                pass_bytes=SPANS * span,
                passes=3,
                each=lambda: rounds.append(1),
            )
            assert figures.pass_bytes == SPANS * span and len(figures.memcpy_seconds) == 6
            for found in figures.transports.values():
                assert len(found.seconds) == len(found.memcpy_share) == len(found.cpu_seconds) == 3
                assert min(*found.seconds, *found.memcpy_share) > 0 <= min(found.cpu_seconds)
    assert len(rounds) == 6


async def test_a_transport_that_changes_bytes_is_no_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = transport_speed._verified

    async def damaged(peer: Any, name: str, writer: Any, spans: Any, targets: list[int]) -> None:
        await honest(peer, name, writer, spans, targets)
        moved = [targets[1], targets[0], *targets[2:]]
        other = [spans[0], *spans[:1], *spans[2:]]  # the second span's page gets nothing of its own
        await honest(peer, name, writer, other, moved)

    monkeypatch.setattr(transport_speed, "_verified", damaged)
    async with receiving_process() as peer:
        with pytest.raises(TransferError, match="shm: the pages that arrived are not those that were sent"):
            await measure(peer, ["shm"], span_bytes=SPAN, pass_bytes=SPANS * SPAN, passes=1)


async def test_a_rival_stands_before_and_behind_each_pass_of_its_transport() -> None:
    asked = list[int]()

    class CountingRival:
        async def seconds(self) -> float:
            asked.append(1)
            return float(len(asked))

    @asynccontextmanager
    async def rival(span_bytes: int, targets: Sequence[int]) -> AsyncIterator[CountingRival]:
        assert span_bytes == SPAN and len(set(targets)) == SPANS
        yield CountingRival()

    async with receiving_process() as peer:
        figures = await measure(
            peer, ["shm", "tcp"], span_bytes=SPAN, pass_bytes=SPANS * SPAN, passes=2, rivals={"tcp": rival}
        )
    assert figures.transports["tcp"].rival_seconds == [1.5, 3.5] and not figures.transports["shm"].rival_share
    assert figures.transports["tcp"].rival_share[1] == 3.5 / figures.transports["tcp"].seconds[1]


async def test_the_c_loop_moves_all_spans_pass_after_pass() -> None:
    async with raw_tcp(SPAN, [3, 9, 0, 6, 1]) as loop:
        assert all([0 < await loop.seconds() < 10 for _ in range(3)])


async def test_a_c_loop_that_ends_is_no_measurement() -> None:
    beyond_its_pool = [3, 10]
    with pytest.raises(RawTcpFailed):
        await AsyncExitStack().enter_async_context(raw_tcp(SPAN, beyond_its_pool))


async def test_the_receiving_process_ends_with_the_one_that_measures() -> None:
    async with receiving_process() as peer:
        assert (await peer.ask())["cpu_seconds"] > 0
    with pytest.raises((TransferError, ConnectionError)):
        await peer.ask()


def test_the_doctor_says_how_fast_each_transport_is_and_which_is_used(tmp_path: Path) -> None:
    gateway = GatewayConfig(http_address=free_address(), grpc_address=free_address(), worker_address=free_address())
    report = doctor.examine(gateway, DecodeConfig(cache_folder=tmp_path), speed_bytes=1 << 18)
    assert report["problems"] == [] and report["memcpy_gb_per_second"] > 0
    chosen = {entry["name"]: entry["chosen"] for entry in report["transports"]}
    assert chosen == {"shm": True, "rdma": False, "tcp": False}
    for entry in report["transports"]:
        if entry["usable"]:
            assert entry["gb_per_second"] > 0 and entry["memcpy_share"] > 0
        else:
            assert entry["name"] == "rdma" and len(entry["reason"]) > 20 and entry["gb_per_second"] is None
    assert report["transports"][0]["reason"] == "same host and user"
    assert set(report["library"]) == {"version", "sources", "digest"} and report["product_path"] == "pairs"
    assert f"kernels={report['library']['version']}-{report['library']['sources'][:12]}" in report["class"]
    assert json.loads(json.dumps(report)) == report


def test_a_transport_that_is_not_allowed_is_neither_measured_nor_used(tmp_path: Path) -> None:
    worker = DecodeConfig(cache_folder=tmp_path, transports=("tcp",))
    report = doctor.examine(GatewayConfig(), worker, speed_bytes=1 << 18)
    shm, _, tcp = report["transports"]
    assert shm["gb_per_second"] is None and not shm["chosen"]
    assert tcp["gb_per_second"] > 0 and tcp["chosen"] and tcp["reason"] == "prefill's first choice"


def figures(span_kib: int, share: float, cpu_seconds: float) -> SpeedFigures:
    passes = TransportFigures([0.1, 0.2, 0.3], [share, share, share * 2], [cpu_seconds] * 3)
    return SpeedFigures(span_kib << 10, 10**8, [0.1, 0.1, 0.1], {"shm": passes})


def test_the_worst_size_counts_and_a_missed_target_is_named() -> None:
    found = bench_transport.keys([figures(16, 0.95, 0.02), figures(256, 0.8, 0.01)])
    assert found["ratio_to_memcpy"] == {"shm": 0.8}
    assert found["cpu_seconds_per_gb"] == {"shm": pytest.approx(0.2)}
    assert found["spans"][0]["transports"]["shm"]["gb_per_second"]["median"] == pytest.approx(0.5)
    assert found["spreads"]["ratio_to_memcpy"]["shm"]["median"] == 0.8
    assert found["ratio_to_raw_tcp"] == {}
    assert bench_transport.misses({"ratio_to_memcpy": {"shm": 0.8, "tcp": 0.1}, "ratio_to_raw_tcp": {"tcp": 0.7}}) == [
        "shm moves pages at 0.800 of the speed of memcpy, wanted >= 0.85",
        "tcp moves pages at 0.700 of the speed of a plain C loop over TCP, wanted >= 0.8",
    ]
    assert not bench_transport.misses({"ratio_to_memcpy": {"shm": 0.85}, "ratio_to_raw_tcp": {"tcp": 0.8}})


def test_the_benchmark_ends_with_one_json_object() -> None:
    command = ["-m", "bench.transport", "--json", "--mib", "1", "--passes", "2", "--spans", "16", "64"]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    measured = {"shm", "rdma", "tcp"} - set(said["left_out"])
    assert set(said["ratio_to_memcpy"]) == set(said["cpu_seconds_per_gb"]) == measured
    assert measured >= {"shm", "tcp"} and all(said["left_out"].values())
    assert [row["span_bytes"] for row in said["spans"]] == [16 << 10, 64 << 10]
    assert set(said["ratio_to_raw_tcp"]) == set(said["spreads"]["ratio_to_raw_tcp"]) == {"tcp"}
    for key in ("ratio_to_memcpy", "ratio_to_raw_tcp", "raw_tcp_gb_per_second"):
        assert set(said["spans"][0]["transports"]["tcp"][key]) == {"median", "low", "high"}
