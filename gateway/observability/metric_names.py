"""The one table of all metrics that `GET /metrics` shows: name, kind, help, labels and buckets.

Names are written as PromQL writes them: a counter ends with `_total`, a histogram stands without `_bucket`. Dashboards,
rules and docs/metrics.md use these names only. The long file is a list, in which a reader looks a name up."""

from dataclasses import dataclass
from enum import Enum

from mesh import buckets as at
from mesh.buckets import Buckets


class MetricKind(Enum):
    COUNTER = "counter"  # rises for the life of the process that counts it
    GAUGE = "gauge"  # stands for this moment
    HISTOGRAM = "histogram"  # cumulative buckets, a sum and a count


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric. A histogram has buckets; the upper bound +Inf is always added."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    buckets: Buckets = ()
    to_context: bool = False  # only the buckets up to the model's context length are exported

    def __post_init__(self) -> None:
        if (self.kind is MetricKind.HISTOGRAM) != bool(self.buckets) or list(self.buckets) != sorted(set(self.buckets)):
            raise ValueError(f"{self.name}: a histogram, and nothing else, has rising buckets")


# ---- labels

WORKER = ("worker", "tier")  # the worker's name; gateway, prefill or decode
MODEL = ("model_name", "engine")
TENANT = ("tenant",)
GEN_AI = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model", "gen_ai_response_model")


def _counter(name: str, help: str, labels: tuple[str, ...] = ()) -> MetricSpec:
    return MetricSpec(name, MetricKind.COUNTER, help, labels)


def _gauge(name: str, help: str, labels: tuple[str, ...] = ()) -> MetricSpec:
    return MetricSpec(name, MetricKind.GAUGE, help, labels)


def _histogram(
    name: str, help: str, buckets: Buckets, labels: tuple[str, ...] = (), *, to_context: bool = False
) -> MetricSpec:
    return MetricSpec(name, MetricKind.HISTOGRAM, help, labels, buckets, to_context)


BATON = (
    # requests, as the gateway sees them; a request with n choices counts n times
    _counter(
        "baton_requests_total",
        "Ended requests; refused ones are in baton_errors_total only. path: remote (prefill computed the prompt), "
        "local (decode did), resumed (more than one attempt), none (no worker took it). status: ok, error, cancelled",
        ("path", "status"),
    ),
    _counter("baton_attempts_total", "Attempts that the gateway began: one per request, and one more per resume"),
    _counter("baton_resumes_total", "Attempts after the first, by the reason that ended the one before", ("reason",)),
    _counter("baton_errors_total", "Errors sent to clients, refused requests included", ("reason",)),
    _counter(
        "baton_refusals_total",
        "Requests that the gateway refused before anything was computed. reason: queue (they would wait longer than "
        "queue_seconds), deadline (longer than their own deadline), max_waiting, no_worker, draining",
        ("reason",),
    ),
    _counter("baton_prompt_tokens_total", "Prompt tokens of requests that have their first token"),
    _counter("baton_generation_tokens_total", "Tokens that the front doors took for clients"),
    _histogram(
        "baton_time_to_first_token_seconds", "Acceptance to the first token at the gateway", at.FIRST_TOKEN, ("path",)
    ),
    _histogram(
        "baton_inter_token_latency_seconds",
        "Time between two messages with tokens of one request; tokens of one step count once",
        at.ITL,
    ),
    _histogram("baton_request_seconds", "Acceptance to the end", at.LATENCY, ("path", "status")),
    _histogram(
        "baton_handoff_seconds",
        "First token of a remote prompt until decode's first message: what the client waits for the hand-off",
        at.STAGE,
    ),
    # queues
    _gauge("baton_waiting_requests", "Requests that wait: for a worker, their turn or pages", WORKER),
    _gauge("baton_running_requests", "Requests that a worker computes; at the gateway: all that a worker has", WORKER),
    _gauge("baton_queued_tokens", "Prompt tokens that are not computed yet", WORKER),
    _gauge(
        "baton_estimated_wait_seconds", "Time that a new request of the model would wait behind others", ("model_name",)
    ),
    _histogram(
        "baton_prefill_queue_seconds", "A prompt's arrival at a worker until its first step", at.STAGE, ("tier",)
    ),
    _histogram(
        "baton_prefill_compute_seconds", "A prompt's first step until its first token is sampled", at.STAGE, ("tier",)
    ),
    # routing and the prefix cache
    _counter(
        "baton_route_decisions_total",
        "Routes. decision: remote, local_cached (at most a page is missing), local_setting, local_no_prefill (no "
        "usable prefill worker), wait (no worker)",
        ("decision",),
    ),
    _histogram("baton_route_overhead_seconds", "Time that one choice of a route takes in the gateway", at.MICRO),
    _counter("baton_prefix_query_tokens_total", "Prompt tokens for which a worker asked its prefix cache", ("tier",)),
    _counter("baton_prefix_hit_tokens_total", "Prompt tokens that the prefix cache had", ("tier",)),
    # the KV plane, counted by workers
    _histogram(
        "baton_kv_transfer_seconds",
        "Landing accepted until Commit or failure, compute included. result: ok, error, cancelled",
        at.STAGE,
        (*WORKER, "transport", "result"),
    ),
    _counter(
        "baton_kv_transfer_bytes_total",
        "Page bytes pushed to decode. result: ok, error (the write failed)",
        (*WORKER, "transport", "result"),
    ),
    _histogram(
        "baton_kv_transfer_exposed_seconds",
        "Part of a transfer that no compute hides: first token sampled until Commit",
        at.STAGE,
        (*WORKER, "transport"),
    ),
    _histogram(
        "baton_kv_transfer_hidden_ratio",
        "Share of a transfer's bytes that were written before the first token was sampled",
        at.SHARE,
        (*WORKER, "transport"),
    ),
    _counter("baton_kv_resent_bytes_total", "Page bytes that decode asked for again", WORKER),
    _counter(
        "baton_kv_transfer_errors_total",
        "Failed transfers. reason at prefill: write_failed, session_ended, unreachable; at decode: damaged, missing, "
        "landing_lost, no_progress",
        (*WORKER, "reason"),
    ),
    _counter(
        "baton_kv_frames_refused_total",
        "Connections and frames of writers that a receiver refused",
        (*WORKER, "transport", "reason"),
    ),
    _histogram("baton_kv_landing_seconds", "Landing granted by decode until the request runs", at.STAGE, WORKER),
    _counter(
        "baton_admissions_total",
        "Requests that decode began to run. kind: remote (prefill computed all), patched (decode computed a missing "
        "rest), local (decode computed the prompt)",
        (*WORKER, "kind"),
    ),
    _gauge("baton_pages", "KV pages. state: free, cached, in_use, landing, quarantined", (*WORKER, "state")),
    _gauge("baton_pages_stuck", "Quarantined pages whose writer is silent and may not be killed", WORKER),
    _counter("baton_pages_quarantined_total", "Pages that went into quarantine", WORKER),
    _counter("baton_ledger_broken_total", "Times that pages of the worker did not add up, each in another way", WORKER),
    _counter("baton_requests_failed_alone_total", "Requests that ended because a step with them alone failed", WORKER),
    _gauge("baton_sessions", "Sessions that are up. peer: gateway, prefill, decode", (*WORKER, "peer")),
    _counter("baton_leases_expired_total", "Sessions that ended because the peer was silent", (*WORKER, "peer")),
    # steps of the engine, counted by workers
    _histogram("baton_step_seconds", "Time of one step", at.STEP, WORKER),
    _histogram("baton_step_rows", "Rows of one step: prompt tokens, last tokens and drafts", at.ROWS, WORKER),
    _histogram(
        "baton_step_tokens", "Prompt tokens computed and tokens emitted by one step", at.ITERATION_TOKENS, WORKER
    ),
    _histogram(
        "baton_batch_efficiency",
        "Share of a step that was used: requests over max_batch at decode, rows over step_tokens at prefill",
        at.SHARE,
        WORKER,
    ),
    _counter("baton_draft_tokens_total", "Drafts that the model verified", WORKER),
    _counter("baton_accepted_draft_tokens_total", "Drafts that became tokens", WORKER),
    # tenants, where the gateway has keys; the hundred first of the file by name
    _counter("baton_tenant_requests_total", "Requests of a tenant that the gateway let in", TENANT),
    _counter(
        "baton_tenant_refused_total",
        "Requests of a tenant that its limits refused. limit: tokens, choices",
        (*TENANT, "limit"),
    ),
    _counter("baton_tenant_tokens_total", "Tokens of a tenant. kind: prompt, generated", (*TENANT, "kind")),
    _gauge("baton_tenant_choices", "Choices of a tenant that run, and requests that are being read", TENANT),
    # processes
    _histogram(
        "baton_event_loop_delay_seconds",
        "How late the event loop runs a timer that is due; up to 2.5 ms are its own rounding",
        at.DELAY,
        WORKER,
    ),
    _counter("baton_spans_dropped_total", "Trace spans that the gateway could not export", WORKER),
    _gauge("baton_workers_attached", "Workers with a session, draining ones included", ("tier",)),
    _gauge("baton_workers_draining", "Workers that take no new requests", ("tier",)),
    _gauge("baton_measures_age_seconds", "Time since the worker's measures last came", WORKER),
    _gauge("baton_build_info", "1; what is installed", ("version",)),
    _gauge(
        "baton_model_info",
        "1; what is served: name, hash of the weights, numerics class, tokens of a page, context length",
        ("model_name", "model_hash", "numerics", "page_tokens", "context_tokens"),
    ),
    _gauge(
        "baton_worker_info",
        "1; which model the worker serves: join it to other metrics of workers",
        (*WORKER, "model_name"),
    ),
)

VLLM = (
    _gauge(
        "vllm:num_requests_running",
        "Requests of this gateway whose prompt is being computed or whose tokens are being generated, on any worker",
        MODEL,
    ),
    _gauge("vllm:num_requests_waiting", "Requests of this gateway that wait: for a worker, their turn or pages", MODEL),
    _gauge(
        "vllm:kv_cache_usage_perc",
        "KV pages of all decode workers that are not free or cached, 1 means 100 percent",
        MODEL,
    ),
    _gauge(
        "vllm:cache_config_info",
        "1; tokens of a page, and pages of all decode workers together",
        (*MODEL, "block_size", "num_gpu_blocks"),
    ),
    _counter("vllm:num_preemptions_total", "Requests of this gateway that a decode worker preempted", MODEL),
    _counter("vllm:prompt_tokens_total", "Prompt tokens of requests that have their first token", MODEL),
    _counter("vllm:generation_tokens_total", "Generated tokens, as the clients' usage counts them", MODEL),
    _counter("vllm:prefix_cache_queries_total", "Prompt tokens that workers looked up in their prefix caches", MODEL),
    _counter("vllm:prefix_cache_hits_total", "Prompt tokens that workers found in their prefix caches", MODEL),
    _counter(
        "vllm:request_success_total",
        "Ended requests. finished_reason: stop, length, abort (cancelled), error",
        (*MODEL, "finished_reason"),
    ),
    _counter("vllm:spec_decode_num_drafts_total", "Steps of a request that verified drafts", MODEL),
    _counter("vllm:spec_decode_num_draft_tokens_total", "Drafts that were verified", MODEL),
    _counter("vllm:spec_decode_num_accepted_tokens_total", "Drafts that became tokens", MODEL),
    _counter(
        "vllm:spec_decode_num_accepted_tokens_per_pos_total",
        "Drafts that became tokens, by their place among the drafts of a step, from 0",
        (*MODEL, "position"),
    ),
    _histogram(
        "vllm:time_to_first_token_seconds", "Acceptance by the gateway to the first token there", at.FIRST_TOKEN, MODEL
    ),
    _histogram(
        "vllm:inter_token_latency_seconds",
        "Time between two steps' tokens of one request, at the gateway",
        at.PER_TOKEN,
        MODEL,
    ),
    _histogram(
        "vllm:request_time_per_output_token_seconds",
        "First token to last, over the number of tokens after the first; requests that ended well",
        at.PER_TOKEN,
        MODEL,
    ),
    _histogram(
        "vllm:e2e_request_latency_seconds", "Acceptance to the end; requests that ended well", at.LATENCY, MODEL
    ),
    _histogram(
        "vllm:request_queue_time_seconds",
        "Acceptance until the first step of the prompt, on whichever worker computes it: waiting at the gateway, "
        "at prefill, and for decode's pages; requests that ended well",
        at.LATENCY,
        MODEL,
    ),
    _histogram(
        "vllm:request_prefill_time_seconds",
        "First step of the prompt, on whichever worker computes it, to the first token; requests that ended well",
        at.LATENCY,
        MODEL,
    ),
    _histogram(
        "vllm:request_decode_time_seconds",
        "First token to the end, the hand-off included; requests that ended well",
        at.LATENCY,
        MODEL,
    ),
    _histogram(
        "vllm:request_inference_time_seconds",
        "First step of the prompt to the end: prefill time and decode time; requests that ended well",
        at.LATENCY,
        MODEL,
    ),
    _histogram("vllm:request_prompt_tokens", "Prompt tokens of a request", at.REQUEST_TOKENS, MODEL, to_context=True),
    _histogram(
        "vllm:request_generation_tokens", "Generated tokens of a request", at.REQUEST_TOKENS, MODEL, to_context=True
    ),
    _histogram(
        "vllm:request_max_num_generation_tokens",
        "Generated tokens of a request's longest choice",
        at.REQUEST_TOKENS,
        MODEL,
        to_context=True,
    ),
    _histogram("vllm:request_params_n", "Choices that a request asks for", at.CHOICES, MODEL),
    _histogram("vllm:request_params_max_tokens", "max_tokens of a request", at.REQUEST_TOKENS, MODEL, to_context=True),
    _histogram(
        "vllm:iteration_tokens_total",
        "Prompt tokens computed and tokens emitted by one step of any worker",
        at.ITERATION_TOKENS,
        MODEL,
    ),
)

OTEL = (
    _histogram(
        "gen_ai_server_request_duration_seconds",
        "Acceptance to the end; error_type is empty for requests that ended well",
        at.OTEL_DURATION,
        (*GEN_AI, "error_type"),
    ),
    _histogram(
        "gen_ai_server_time_to_first_token_seconds",
        "Acceptance to the first token; requests that got one",
        at.OTEL_FIRST_TOKEN,
        GEN_AI,
    ),
    _histogram(
        "gen_ai_server_time_per_output_token_seconds",
        "First token to last, over the number of tokens after the first; requests that ended well",
        at.OTEL_PER_TOKEN,
        GEN_AI,
    ),
)

TABLE = {metric.name: metric for metric in (*BATON, *VLLM, *OTEL)}
