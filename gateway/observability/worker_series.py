"""The series that workers push, by metric: each name of a worker's measures becomes a metric and its labels.

A restarted worker begins at zero again under the same name, which Prometheus takes for what it is, a counter's reset.
Names that this version does not know are left out; so a gateway and newer workers get along."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from gateway.observability.histograms import HistogramView
from gateway.observability.metric_names import TABLE
from gateway.observability.text import MetricSeries
from gateway.workers.attached import AttachedWorker

MOST_SERIES = 100  # series of one metric and one worker, at most
# Names of a worker's counts -> the metric, and the values of its labels behind `worker` and `tier`.
COUNTS: dict[str, tuple[str, ...]] = {
    **{f"pages_{state}": ("baton_pages", state) for state in ("free", "cached", "in_use", "landing", "quarantined")},
    **{f"sessions_{peer}": ("baton_sessions", peer) for peer in ("gateway", "prefill", "decode")},
    **{f"expired_{peer}": ("baton_leases_expired_total", peer) for peer in ("gateway", "prefill", "decode")},
    **{f"admitted_{kind}": ("baton_admissions_total", kind) for kind in ("remote", "patched", "local")},
    "adapters": ("baton_adapters", "named"),
    "adapters_in_memory": ("baton_adapters", "in_memory"),
    "adapters_waiting": ("baton_adapter_waiting_requests",),
    "adapter_bytes": ("baton_adapter_bytes",),
    "adapter_loads": ("baton_adapter_loads_total",),
    "adapter_evictions": ("baton_adapter_evictions_total",),
    "stuck": ("baton_pages_stuck",),
    "quarantined": ("baton_pages_quarantined_total",),
    "cleared": ("baton_pages_cleared_total",),
    "ledger_broken": ("baton_ledger_broken_total",),
    "failed": ("baton_requests_failed_alone_total",),
    "bytes_resent": ("baton_kv_resent_bytes_total",),
    "spans_damaged": ("baton_kv_transfer_errors_total", "damaged"),
    "spans_missing": ("baton_kv_transfer_errors_total", "missing"),
    "landing_lost": ("baton_kv_transfer_errors_total", "landing_lost"),
    "no_progress": ("baton_kv_transfer_errors_total", "no_progress"),
    "drafted": ("baton_draft_tokens_total",),
    "accepted": ("baton_accepted_draft_tokens_total",),
}


def labels_of(workers: Iterable[AttachedWorker]) -> dict[int, tuple[str, str]]:
    """The labels `worker` and `tier` of each worker, by incarnation. A configured name stands as it is; of several
    workers with one name the last to attach has it, and the incarnation tells the others, and nameless ones, apart."""
    workers, last = list(workers), dict[str, int]()
    for worker in workers:
        last[worker.hello.name] = worker.incarnation
    found = dict[int, tuple[str, str]]()
    for worker in workers:
        name, tier = worker.hello.name, worker.tier.value
        plain = name not in ("", tier) and last[name] == worker.incarnation
        found[worker.incarnation] = (name if plain else f"{name or tier}-{worker.incarnation:016x}"[:-8], tier)
    return found


class WorkerSeries:
    """All that workers measure, by metric; worker by worker, because a large mesh takes its time."""

    def __init__(self) -> None:
        self._found = defaultdict[str, list[MetricSeries]](list)

    def add(self, worker: AttachedWorker, labels: tuple[str, str]) -> None:
        mine = Counter[str]()
        for metric, series in _series_of(worker, labels):
            mine[metric] += 1
            if mine[metric] <= MOST_SERIES:
                self._found[metric].append(series)

    def of(self, metric: str) -> list[MetricSeries]:
        return self._found.get(metric, [])


def _series_of(worker: AttachedWorker, labels: tuple[str, str]) -> Iterator[tuple[str, MetricSeries]]:
    for name, value in worker.measures.items():
        if target := _target(name):
            metric, *more = target
            yield metric, MetricSeries((*labels, *more), int(value) if value.is_integer() else value)
    for name, distribution in worker.distributions.items():
        base, *more = name.split("/")
        spec = TABLE.get(f"baton_{base}")
        if spec is not None and len(distribution.counts) == len(spec.buckets) + 1:
            if len(spec.labels) == len(labels) + len(more):
                view = HistogramView(spec.buckets, list(distribution.counts), distribution.sum, [])
                yield spec.name, MetricSeries((*labels, *more), view)


def _target(name: str) -> tuple[str, ...] | None:
    """The metric and label values of a count; None if no metric shows it."""
    if name in COUNTS:
        return COUNTS[name]
    if name.startswith("refused_"):  # refused_cuda_ipc_stranger
        transport, _, reason = name.removeprefix("refused_").rpartition("_")
        return "baton_kv_frames_refused_total", transport, reason
    base, *more = name.split("/")
    spec = TABLE.get(f"baton_{base}_total")
    return (spec.name, *more) if more and spec is not None and len(spec.labels) == 2 + len(more) else None
