"""Where the series of the metrics with foreign names come from: for each model, what the gateway counts and what its
workers last reported. To vLLM's dashboards the whole mesh is one engine."""

from collections.abc import Callable, Iterator

from gateway.attaching.service import Gateway
from gateway.observability.histograms import HistogramFamily
from gateway.observability.metrics import GatewayMetrics
from gateway.observability.sources import Source, views
from gateway.observability.text import MetricSeries
from gateway.sequencing.requests import RequestPhase
from mesh.messages.jobs import Tier

ENGINE = "0"  # the number of that engine
PROVIDER = "baton"
FINISH_REASONS = ("stop", "length", "abort", "error")


def vllm_sources(gateway: Gateway, root: str, counted: GatewayMetrics, context: int) -> dict[str, Source]:
    """vLLM's names. `context`: the model's context length."""
    model = (root, ENGINE)

    def one(number: Callable[[], float]) -> Source:
        return lambda _: [MetricSeries(model, number())]

    def seen(family: HistogramFamily, **labels: str) -> Source:
        return views(family, constant=model, where=labels, most=context)

    return {
        "vllm:num_requests_running": one(lambda: _shares(gateway, root)[0]),
        "vllm:num_requests_waiting": one(lambda: _shares(gateway, root)[1]),
        "vllm:kv_cache_usage_perc": one(lambda: _kv_usage(gateway, root)),
        "vllm:cache_config_info": lambda _: _cache_config(gateway, root),
        "vllm:num_preemptions_total": one(lambda: counted.resumes["preempted"]),
        "vllm:prompt_tokens_total": one(lambda: counted.prompt_tokens),
        "vllm:generation_tokens_total": one(lambda: counted.generated),
        "vllm:prefix_cache_queries_total": one(counted.prefix_queries.total),
        "vllm:prefix_cache_hits_total": one(counted.prefix_hits.total),
        "vllm:request_success_total": lambda _: (
            MetricSeries((*model, reason), counted.finished[reason]) for reason in FINISH_REASONS
        ),
        "vllm:spec_decode_num_drafts_total": one(lambda: counted.draft_steps),
        "vllm:spec_decode_num_draft_tokens_total": one(lambda: counted.drafts),
        "vllm:spec_decode_num_accepted_tokens_total": one(lambda: counted.accepted_drafts),
        "vllm:spec_decode_num_accepted_tokens_per_pos_total": lambda _: (
            MetricSeries((*model, str(place)), n) for place, n in sorted(counted.accepted_at.items())
        ),
        "vllm:time_to_first_token_seconds": seen(counted.first_tokens),
        "vllm:inter_token_latency_seconds": seen(counted.gaps),
        "vllm:request_time_per_output_token_seconds": seen(counted.per_token),
        "vllm:e2e_request_latency_seconds": seen(counted.durations, status="ok"),
        "vllm:request_queue_time_seconds": seen(counted.queues),
        "vllm:request_prefill_time_seconds": seen(counted.prefills),
        "vllm:request_decode_time_seconds": seen(counted.decodes),
        "vllm:request_inference_time_seconds": seen(counted.inferences),
        "vllm:request_prompt_tokens": seen(counted.prompt_sizes),
        "vllm:request_generation_tokens": seen(counted.answer_sizes),
        "vllm:request_max_num_generation_tokens": seen(counted.longest_choices),
        "vllm:request_params_n": seen(counted.choice_counts),
        "vllm:request_params_max_tokens": seen(counted.token_limits),
        "vllm:iteration_tokens_total": seen(counted.step_tokens),
    }


def gen_ai_sources(root: str, counted: GatewayMetrics) -> dict[str, Source]:
    """OpenTelemetry's names."""
    named = (PROVIDER, root, root)
    return {
        "gen_ai_server_request_duration_seconds": views(counted.durations, by=("operation", "error"), between=named),
        "gen_ai_server_time_to_first_token_seconds": views(counted.first_tokens, by=("operation",), between=named),
        "gen_ai_server_time_per_output_token_seconds": views(counted.per_token, by=("operation",), between=named),
    }


def _shares(gateway: Gateway, root: str) -> tuple[int, int]:
    """(running, waiting) requests of this gateway and model; together they are all that have not ended. Of those
    without a token, as many run as the workers say that they compute."""
    requests = [r for r in gateway.sequencer.requests.values() if r.choice.model == root]
    workers = gateway.workers.of(root)
    opened = [r for r in requests if r.phase is RequestPhase.OPEN]
    decoding = sum(r.first_token_seconds is not None for r in opened)
    remote = sum(r.first_token_seconds is None and r.prefill is not None for r in opened)
    local = len(opened) - decoding - remote
    computing = min(remote, sum(w.load.running for w in workers.tier(Tier.PREFILL)))
    queued = min(local, sum(w.load.waiting for w in workers.tier(Tier.DECODE)))
    running = decoding + computing + local - queued
    return running, len(requests) - running


def _kv_usage(gateway: Gateway, root: str) -> float:
    loads = [w.load for w in gateway.workers.of(root) if w.tier is Tier.DECODE]
    total = sum(load.total_pages for load in loads)
    return 1 - sum(load.free_pages for load in loads) / total if total else 0.0


def _cache_config(gateway: Gateway, root: str) -> Iterator[MetricSeries]:
    decodes = [w for w in gateway.workers.of(root) if w.tier is Tier.DECODE]
    if decodes:
        pages = sum(w.load.total_pages // w.bands for w in decodes)
        yield MetricSeries((root, ENGINE, str(decodes[0].hello.page_tokens), str(pages)), 1)
