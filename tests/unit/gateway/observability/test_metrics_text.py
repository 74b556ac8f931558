"""`GET /metrics` as text: both formats are what Prometheus reads, and the page, the table and the manual agree."""

import asyncio
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse_classic

from gateway.attaching.service import Gateway
from gateway.observability.by_model import MetricsByModel
from gateway.observability.export import MeshCollector
from gateway.observability.foreign_names import VLLM
from gateway.observability.histograms import HistogramFamily
from gateway.observability.metric_names import TABLE
from gateway.observability.metric_spec import MetricKind, MetricSpec
from gateway.observability.metrics_page import write_page
from gateway.observability.text import MetricSeries, head, lines, wants_openmetrics
from gateway.observability.worker_series import WorkerSeries, labels_of
from gateway.workers.attached import AttachedWorker
from mesh.messages.jobs import Tier
from mesh.messages.reports import Distribution, Hello, Load, Measure, Measures, PrefixChange
from mesh.network.memory_network import MemoryNetwork
from mesh.telemetry.spans import TraceContext

ROOT = Path(__file__).resolve().parents[4]
ONE = {"tiny": 512}  # a gateway of one model: its context
TRACE = TraceContext(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331)


def worker(name: str, incarnation: int, tier: Tier = Tier.DECODE) -> AttachedWorker:
    load = Load(1, 2, 30, 40, 64)
    hello = Hello(
        tier, incarnation << 32, "a:1", "class", "print", "tiny", "hash", 16, 512, load, PrefixChange(0), name
    )
    return AttachedWorker(hello, cast(Any, SimpleNamespace(heard_seconds=0.0)), load)


def gateway_with(workers: Iterable[AttachedWorker]) -> Gateway:
    gateway = Gateway(MemoryNetwork(Random(1)), random=Random(1), model="tiny")
    for each in workers:
        gateway.workers.add(each)
    return gateway


def collector_of(gateway: Gateway, metrics: MetricsByModel, *, vllm: bool = True) -> MeshCollector:
    return MeshCollector(
        gateway,
        metrics,
        name="gateway",
        vllm=vllm,
        clock=lambda: 5.0,
        spans_dropped=lambda: 3,
    )


def text_of(spec: MetricSpec, series: list[MetricSeries], *, openmetrics: bool) -> str:
    offset = 1_000.0 if openmetrics else None
    return head(spec, openmetrics=openmetrics) + "".join(lines(spec, series, wall_offset=offset))


@pytest.mark.parametrize("openmetrics", [False, True])
@pytest.mark.parametrize("name", sorted(TABLE))
def test_every_metric_of_the_table_is_read_back_by_prometheus_own_parser(name: str, openmetrics: bool) -> None:
    spec = TABLE[name]
    labels = tuple('a"\\\n' for _ in spec.labels)
    value: Any = 7
    if spec.kind is MetricKind.HISTOGRAM:
        family = HistogramFamily((), spec.buckets)
        for number in (spec.buckets[0], spec.buckets[-1] * 2):
            family.of().observe(number, TRACE, 1.0)
        (value,) = family.views(spec.buckets).values()
    text = text_of(spec, [MetricSeries(labels, value)], openmetrics=openmetrics)
    parse: Callable[[str], Any] = parse_open if openmetrics else parse_classic
    (family,) = parse(text + "# EOF\n" if openmetrics else text)
    samples = {sample.name for sample in family.samples}
    if spec.kind is MetricKind.HISTOGRAM:
        assert samples == {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
        counts = [sample.value for sample in family.samples if sample.name.endswith("_bucket")]
        assert counts == sorted(counts) and counts[0] == 1 and counts[-1] == 2
        assert len(counts) == len(spec.buckets) + 1
    else:
        assert samples == {name} and family.samples[0].value == 7
    assert all(
        dict(sample.labels).items() >= dict(zip(spec.labels, labels, strict=True)).items() for sample in family.samples
    )


def test_exemplars_name_recorded_traces_only_and_only_in_openmetrics() -> None:
    spec = TABLE["baton_handoff_seconds"]
    family = HistogramFamily((), spec.buckets)
    family.of().observe(0.002, TRACE, 5.0)
    family.of().observe(0.3, None, 6.0)
    (view,) = family.views(spec.buckets).values()
    text = text_of(spec, [MetricSeries((), view)], openmetrics=True)
    assert re.findall(r"# \{.*", text) == ['# {trace_id="0af7651916cd43dd8448eb211c80319c"} 0.002 1005.000']
    assert "trace_id" not in text_of(spec, [MetricSeries((), view)], openmetrics=False)


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("application/openmetrics-text", True),
        ("Application/OpenMetrics-Text ; Version=1.0.0", True),
        ("TEXT/PLAIN", False),
        ("application/openmetrics-text;q=.;q=1.2.3", True),
        ("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3", True),
        ("text/plain;version=0.0.4;q=0.6,application/openmetrics-text;version=1.0.0;q=0.5", False),
    ],
)
def test_the_accept_header_chooses_the_format(accept: str, expected: bool) -> None:
    assert wants_openmetrics(accept) is expected


def test_one_observation_serves_metrics_with_other_bounds_and_labels() -> None:
    family = HistogramFamily(("path", "status"), (1, 2, 3), (2, 10))
    assert family.bounds == (1, 2, 3, 10)
    for path, status, value in (("a", "ok", 1.5), ("b", "ok", 2.5), ("b", "error", 9.0), ("a", "ok", 99.0)):
        family.of(path, status).observe(value)
    assert family.views((2, 10))[()].counts == [1, 2, 1]
    assert family.views((2, 10), where=lambda labels: labels["status"] == "ok")[()].cumulative() == [1, 2, 3]
    assert {key: view.sum for key, view in family.views((2,), by=("path",)).items()} == {("a",): 100.5, ("b",): 11.5}


def test_a_workers_measures_become_series_and_unknown_names_are_left_out() -> None:
    mine = worker("decode-1", 1)
    values = {
        "pages_free": 3.0,
        "refused_cuda_ipc_stranger": 2.0,
        "kv_transfer_bytes/shm/ok": 4096.0,
        "kv_transfer_bytes/shm": 1.0,
        "invented": 1.0,
        "invented/by/this/test": 1.0,
    }
    known = Distribution("kv_transfer_seconds/tcp/error", (1,) * 16, 2.0)
    strange = [Distribution("kv_transfer_seconds/tcp/ok", (1, 2), 2.0), Distribution("invented", (1,), 1.0)]
    mine.measure(Measures(tuple(Measure(*each) for each in values.items()), (known, *strange)), 1.0)
    own = ("decode-1", "decode")
    found = WorkerSeries()
    found.add(mine, own)
    assert found.of("baton_pages") == [MetricSeries((*own, "free"), 3)]
    assert found.of("baton_kv_frames_refused_total") == [MetricSeries((*own, "cuda_ipc", "stranger"), 2)]
    assert found.of("baton_kv_transfer_bytes_total") == [MetricSeries((*own, "shm", "ok"), 4096)]
    (series,) = found.of("baton_kv_transfer_seconds")
    assert series.values == (*own, "tcp", "error")


def test_a_worker_cannot_make_series_without_end() -> None:
    mine = worker("decode-1", 1)
    values = tuple(Measure(f"refused_tcp_reason{number}", 1.0) for number in range(1000))
    mine.measure(Measures(values, ()), 1.0)
    found = WorkerSeries()
    found.add(mine, ("decode-1", "decode"))
    assert len(found.of("baton_kv_frames_refused_total")) == 100


def test_workers_of_one_name_are_told_apart() -> None:
    workers = [worker("decode-1", 1), worker("decode-1", 2), worker("decode", 3), worker("prefill-1", 4, Tier.PREFILL)]
    names = [labels_of(workers)[each.incarnation] for each in workers]
    assert names == [
        ("decode-1-00000001", "decode"),
        ("decode-1", "decode"),
        ("decode-00000003", "decode"),
        ("prefill-1", "prefill"),
    ]


async def test_every_metric_has_a_source_and_a_row_in_the_manual() -> None:
    collector = collector_of(gateway_with([]), MetricsByModel(ONE))
    assert collector.names == set(TABLE)
    text = (ROOT / "docs/metrics.md").read_text()
    rows = re.findall(r"^\| `([\w:]+)` \| (\w+), [^|]+ \| ([^|]+) \|", text, re.MULTILINE)
    assert {name: (kind, re.findall(r"`(\w+)`", labels)) for name, kind, labels in rows} == {
        name: (spec.kind.value, list(spec.labels)) for name, spec in TABLE.items()
    }
    assert len(rows) == len(TABLE)


async def test_without_compatibility_no_name_of_vllm_is_shown() -> None:
    page = await write_page(
        collector_of(gateway_with([worker("d", 1)]), MetricsByModel(ONE), vllm=False),
        openmetrics=False,
        wall_offset=0.0,
    )
    assert b"vllm" not in page and b"baton_workers_attached" in page and len(VLLM) > 20


async def test_a_large_page_is_written_in_pieces_and_the_loop_runs_in_between() -> None:
    workers = [worker(f"decode-{number}", number) for number in range(1, 41)]
    collector = collector_of(gateway_with(workers), MetricsByModel(ONE))
    turns, writing = 0, asyncio.ensure_future(write_page(collector, openmetrics=True, wall_offset=0.0, slice_seconds=0))
    while not writing.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns > 100 and b'worker="decode-40"' in writing.result()
    whole = asyncio.ensure_future(write_page(collector, openmetrics=True, wall_offset=0.0, slice_seconds=1e9))
    await asyncio.sleep(0)
    assert whole.done(), "without pieces the loop waits for the whole page"


async def test_every_process_of_a_gateway_judges_by_itself_which_workers_hang() -> None:
    gateway = gateway_with([worker("decode-1", 1), worker("decode-2", 2)])
    collector = MeshCollector(
        gateway,
        MetricsByModel(ONE),
        name="gateway",
        vllm=False,
        clock=lambda: 5.0,
        spans_dropped=lambda: 0,
        process=1,
    )
    next(iter(gateway.workers)).hangs(True)
    found = {spec.name: (spec.labels, series) for spec, series in filter(None, collector.collect())}
    labels, series = found["baton_workers_hung"]
    assert labels == ("tier", "process") and ("decode", "1") in [each.values for each in series if each.value == 1]
    labels, series = found["baton_workers_draining"]
    assert labels == ("tier",) and {each.value for each in series} == {0}, "a hung worker does not drain"
