"""Puts the metrics of the whole mesh together: what the gateway counts, what workers push, and how all stand now.

`MeshCollector.collect` yields each metric of the table with its series. Every metric has one source here; a test holds
that table, sources and docs/metrics.md name the same metrics."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from gateway.attaching.service import Gateway
from gateway.observability.by_model import MetricsByModel
from gateway.observability.foreign_names import OTEL, VLLM
from gateway.observability.foreign_sources import gen_ai_sources, vllm_sources
from gateway.observability.metric_names import BATON, TABLE
from gateway.observability.metric_spec import MetricSpec
from gateway.observability.sources import Source, by_label, by_value, joined, nothing, views
from gateway.observability.text import MetricSeries
from gateway.observability.worker_series import WorkerSeries, labels_of
from gateway.sequencing.requests import RequestPhase
from gateway.tenants.limits import TenantUse
from gateway.tenants.tenants import Tenants
from gateway.workers.attached import AttachedWorker
from mesh.messages.jobs import Tier

GATEWAY = "gateway"  # the label `tier` of the gateway's own series
PROCESS = "process"  # label of what one of several processes of a gateway counts itself
SEEN_ALIKE = {  # all processes see the same, so these have no such label
    "baton_workers_attached",
    "baton_workers_draining",
    "baton_build_info",
    "baton_model_info",
    "baton_worker_info",
    "vllm:kv_cache_usage_perc",
    "vllm:cache_config_info",
}
OF_WORKERS = {"vllm:iteration_tokens_total"}  # sums over workers, which the first process alone shows


class MeshCollector:
    def __init__(
        self,
        gateway: Gateway,
        metrics: MetricsByModel,
        *,
        name: str,
        vllm: bool,
        clock: Callable[[], float],  # the event loop's
        spans_dropped: Callable[[], int],
        tenants: Tenants | None = None,
        process: int | None = None,  # number of this process, where a gateway has several; None: there is one
    ) -> None:
        self._gateway = gateway
        self._metrics = metrics.all
        self._clock = clock
        self._dropped = spans_dropped
        self._own = (name, GATEWAY)
        self._contexts = metrics.contexts
        self._tenants = tenants
        self._process = process
        self._specs = (*BATON, *(VLLM if vllm else ()), *OTEL)
        each = [
            vllm_sources(gateway, root, counted, self._contexts[root]) | gen_ai_sources(root, counted)
            for root, counted in metrics.of.items()
        ]
        self._sources = self._baton() | {name: joined([one[name] for one in each]) for name in each[0]}

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._sources)

    def collect(self) -> Iterator[tuple[MetricSpec, list[MetricSeries]] | None]:
        """Each metric with its series, made when it is asked for. None: only a part of the work is done."""
        pushed, names = WorkerSeries(), labels_of(self._gateway.workers)
        for worker in list(self._gateway.workers):
            pushed.add(worker, names[worker.incarnation])
            yield None
        for spec in self._specs:
            yield self._of_process(spec, [*self._sources[spec.name](spec), *pushed.of(spec.name)])

    def _of_process(self, spec: MetricSpec, series: list[MetricSeries]) -> tuple[MetricSpec, list[MetricSeries]]:
        """The series with the number of this process; those with a worker's name tell it already."""
        if self._process is None or spec.labels[:2] == ("worker", "tier") or spec.name in SEEN_ALIKE:
            return spec, series
        if spec.name in OF_WORKERS and self._process > 0:
            return spec, []
        own = [MetricSeries((*each.values, str(self._process)), each.value) for each in series]
        return replace(spec, labels=(*spec.labels, PROCESS)), own

    def _baton(self) -> dict[str, Source]:
        counted = self._metrics
        workers = {name: nothing for name, spec in TABLE.items() if spec.labels[:2] == ("worker", "tier")}
        return {
            **workers,
            "baton_requests_total": lambda _: (MetricSeries(key, n) for key, n in counted.requests.items()),
            "baton_attempts_total": lambda _: [MetricSeries((), counted.attempts)],
            "baton_resumes_total": by_label(counted.resumes),
            "baton_errors_total": by_label(counted.errors),
            "baton_adapter_requests_total": by_label(counted.adapters),
            "baton_refusals_total": by_label(self._gateway.admission.refusals),
            "baton_prompt_tokens_total": lambda _: [MetricSeries((), counted.prompt_tokens)],
            "baton_generation_tokens_total": lambda _: [MetricSeries((), counted.generated)],
            "baton_time_to_first_token_seconds": views(counted.first_tokens, by=("path",)),
            "baton_inter_token_latency_seconds": views(counted.gaps),
            "baton_request_seconds": views(counted.durations, by=("path", "status")),
            "baton_handoff_seconds": views(counted.handoffs),
            "baton_waiting_requests": self._waiting,
            "baton_running_requests": self._running,
            "baton_queued_tokens": self._queued_tokens,
            "baton_estimated_wait_seconds": self._waits,
            "baton_prefill_queue_seconds": views(counted.prompt_queues, by=("tier",)),
            "baton_prefill_compute_seconds": views(counted.prompt_computes, by=("tier",)),
            "baton_route_decisions_total": by_label(counted.decisions),
            "baton_route_overhead_seconds": views(counted.route_seconds),
            "baton_prefix_query_tokens_total": by_label(counted.prefix_queries),
            "baton_prefix_hit_tokens_total": by_label(counted.prefix_hits),
            "baton_leases_expired_total": lambda _: (
                MetricSeries((*self._own, tier), n) for tier, n in counted.expired.items()
            ),
            "baton_tenant_requests_total": lambda _: self._by_tenant(lambda use: {(): use.requests}),
            "baton_tenant_refused_total": lambda _: self._by_tenant(lambda use: by_value(use.refused)),
            "baton_tenant_tokens_total": lambda _: self._by_tenant(
                lambda use: {("prompt",): use.prompt_tokens, ("generated",): use.generated_tokens}
            ),
            "baton_tenant_choices": lambda _: self._by_tenant(lambda use: {(): use.choices}),
            "baton_event_loop_delay_seconds": views(counted.loop_delay, constant=self._own),
            "baton_spans_dropped_total": lambda _: [MetricSeries(self._own, self._dropped())],
            "baton_pool_tokens": self._pool_tokens,
            "baton_workers_attached": lambda _: self._workers(lambda _: True),
            "baton_workers_draining": lambda _: self._workers(lambda worker: worker.draining),
            "baton_workers_hung": lambda _: self._workers(lambda worker: worker.hung),
            "baton_worker_silent_seconds": self._silences,
            "baton_measures_age_seconds": self._ages,
            "baton_build_info": lambda _: [MetricSeries((_version(),), 1)],
            "baton_model_info": self._model_info,
            "baton_worker_info": self._worker_info,
        }

    def _by_tenant(self, numbers: Callable[[TenantUse], Mapping[tuple[str, ...], int]]) -> Iterator[MetricSeries]:
        """A series for each tenant and each further label."""
        for name, uses in self._tenants.uses() if self._tenants is not None else ():
            sums = Counter[tuple[str, ...]]()
            for use in uses:
                sums.update(numbers(use))
            yield from (MetricSeries((name, *labels), number) for labels, number in sums.items())

    def _waiting(self, _: MetricSpec) -> Iterator[MetricSeries]:
        waiting = sum(r.phase is RequestPhase.WAITING for r in self._gateway.sequencer.requests.values())
        yield MetricSeries(self._own, waiting)
        yield from self._loads(lambda load: load.waiting)

    def _running(self, _: MetricSpec) -> Iterator[MetricSeries]:
        opened = sum(r.phase is RequestPhase.OPEN for r in self._gateway.sequencer.requests.values())
        yield MetricSeries(self._own, opened)
        yield from self._loads(lambda load: load.running)

    def _queued_tokens(self, _: MetricSpec) -> Iterator[MetricSeries]:
        requests = self._gateway.sequencer.requests.values()
        tokens = sum(len(r.choice.prompt) for r in requests if r.phase is RequestPhase.WAITING)
        yield MetricSeries(self._own, tokens)
        yield from self._loads(lambda load: load.queued_tokens)

    def _waits(self, _: MetricSpec) -> Iterator[MetricSeries]:
        for root in self._gateway.served.roots:
            yield MetricSeries((root,), self._gateway.admission.wait_seconds(root))

    def _loads(self, number: Callable[[Any], int]) -> Iterator[MetricSeries]:
        names = labels_of(self._gateway.workers)
        for worker in self._gateway.workers:
            yield MetricSeries(names[worker.incarnation], number(worker.load))

    def _workers(self, counts: Callable[[AttachedWorker], bool]) -> Iterator[MetricSeries]:
        for tier in Tier:
            yield MetricSeries((tier.value,), sum(w.tier is tier and counts(w) for w in self._gateway.workers))

    def _silences(self, _: MetricSpec) -> Iterator[MetricSeries]:
        now, names = self._clock(), labels_of(self._gateway.workers)
        heard = {names[worker.incarnation]: worker.session.heard_seconds for worker in self._gateway.workers}
        for each in self._gateway.silent.now():
            heard.setdefault((each.name, each.tier.value), each.since_seconds)
        yield from (MetricSeries(labels, max(0.0, now - seconds)) for labels, seconds in heard.items())

    def _ages(self, _: MetricSpec) -> Iterator[MetricSeries]:
        now, names = self._clock(), labels_of(self._gateway.workers)
        for worker in self._gateway.workers:
            if worker.measured_seconds is not None:
                yield MetricSeries(names[worker.incarnation], max(0.0, now - worker.measured_seconds))

    def _pool_tokens(self, _: MetricSpec) -> Iterator[MetricSeries]:
        names = labels_of(self._gateway.workers)
        for worker in self._gateway.workers:
            yield MetricSeries((*names[worker.incarnation], worker.page_dtype), worker.pool_tokens)

    def _model_info(self, _: MetricSpec) -> Iterator[MetricSeries]:
        kinds = {(w.model, w.hello.model_hash, w.hello.numerics, w.hello.page_tokens) for w in self._gateway.workers}
        for model, model_hash, numerics, page_tokens in sorted(kinds):
            yield MetricSeries((model, model_hash, numerics, str(page_tokens), str(self._contexts[model])), 1)

    def _worker_info(self, _: MetricSpec) -> Iterator[MetricSeries]:
        names = labels_of(self._gateway.workers)
        for worker in self._gateway.workers:
            yield MetricSeries((*names[worker.incarnation], worker.model), 1)


def _version() -> str:
    try:
        return version("baton")
    except PackageNotFoundError:
        return "not installed"
