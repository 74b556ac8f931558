"""The one table of all metrics that `GET /metrics` shows: name, kind, help, labels and buckets.

Here stand Baton's own; gateway/observability/foreign_names.py has those that other programs have named. Dashboards,
rules and docs/metrics.md use these names only."""

from gateway.observability.foreign_names import OTEL, VLLM
from gateway.observability.metric_spec import counter, gauge, histogram
from mesh.telemetry import buckets as at

WORKER = ("worker", "tier")  # the worker's name; gateway, prefill or decode
TENANT = ("tenant",)

BATON = (
    # requests, as the gateway sees them; a request with n choices counts n times
    counter(
        "baton_requests_total",
        "Ended requests; refused ones are in baton_errors_total only. path: remote (prefill computed the prompt), "
        "local (decode did), resumed (more than one attempt), none (no worker took it). status: ok, error, cancelled",
        ("path", "status"),
    ),
    counter("baton_attempts_total", "Attempts that the gateway began: one per request, and one more per resume"),
    counter("baton_resumes_total", "Attempts after the first, by the reason that ended the one before", ("reason",)),
    counter("baton_errors_total", "Errors sent to clients, refused requests included", ("reason",)),
    counter(
        "baton_refusals_total",
        "Requests that the gateway refused before anything was computed. reason: queue (they would wait longer than "
        "queue_seconds), deadline (longer than their own deadline), max_waiting, no_worker, draining",
        ("reason",),
    ),
    counter("baton_prompt_tokens_total", "Prompt tokens of requests that have their first token"),
    counter("baton_generation_tokens_total", "Tokens that the front doors took for clients"),
    histogram(
        "baton_time_to_first_token_seconds", "Acceptance to the first token at the gateway", at.FIRST_TOKEN, ("path",)
    ),
    histogram(
        "baton_inter_token_latency_seconds",
        "Time between two messages with tokens of one request; tokens of one step count once",
        at.ITL,
    ),
    histogram("baton_request_seconds", "Acceptance to the end", at.LATENCY, ("path", "status")),
    histogram(
        "baton_handoff_seconds",
        "First token of a remote prompt until decode's first message: what the client waits for the hand-off",
        at.STAGE,
    ),
    # queues
    gauge("baton_waiting_requests", "Requests that wait: for a worker, their turn or pages", WORKER),
    gauge("baton_running_requests", "Requests that a worker computes; at the gateway: all that a worker has", WORKER),
    gauge("baton_queued_tokens", "Prompt tokens that are not computed yet", WORKER),
    gauge(
        "baton_estimated_wait_seconds", "Time that a new request of the model would wait behind others", ("model_name",)
    ),
    histogram(
        "baton_prefill_queue_seconds", "A prompt's arrival at a worker until its first step", at.STAGE, ("tier",)
    ),
    histogram(
        "baton_prefill_compute_seconds", "A prompt's first step until its first token is sampled", at.STAGE, ("tier",)
    ),
    # routing and the prefix cache
    counter(
        "baton_route_decisions_total",
        "Routes. decision: remote, local_cached (at most a page is missing), local_faster (prefill has queues), "
        "local_setting, local_no_prefill (no usable prefill worker), wait (no worker)",
        ("decision",),
    ),
    histogram("baton_route_overhead_seconds", "Time that one choice of a route takes in the gateway", at.MICRO),
    counter("baton_prefix_query_tokens_total", "Prompt tokens for which a worker asked its prefix cache", ("tier",)),
    counter("baton_prefix_hit_tokens_total", "Prompt tokens that the prefix cache had", ("tier",)),
    # the KV plane, counted by workers
    histogram(
        "baton_kv_transfer_seconds",
        "Landing accepted until Commit or failure, compute included. result: ok, error, cancelled",
        at.STAGE,
        (*WORKER, "transport", "result"),
    ),
    counter(
        "baton_kv_transfer_bytes_total",
        "Page bytes pushed to decode. result: ok, error (the write failed)",
        (*WORKER, "transport", "result"),
    ),
    histogram(
        "baton_kv_transfer_exposed_seconds",
        "Part of a transfer that no compute hides: first token sampled until Commit",
        at.STAGE,
        (*WORKER, "transport"),
    ),
    histogram(
        "baton_kv_transfer_hidden_ratio",
        "Share of a transfer's bytes that were written before the first token was sampled",
        at.SHARE,
        (*WORKER, "transport"),
    ),
    counter("baton_kv_resent_bytes_total", "Page bytes that decode asked for again", WORKER),
    counter(
        "baton_kv_transfer_errors_total",
        "Failed transfers. reason at prefill: write_failed, session_ended, unreachable; at decode: damaged, missing, "
        "landing_lost, no_progress",
        (*WORKER, "reason"),
    ),
    counter(
        "baton_kv_frames_refused_total",
        "Connections and frames of writers that a receiver refused",
        (*WORKER, "transport", "reason"),
    ),
    histogram("baton_kv_landing_seconds", "Landing granted by decode until the request runs", at.STAGE, WORKER),
    counter(
        "baton_admissions_total",
        "Requests that decode began to run. kind: remote (prefill computed all), patched (decode computed a missing "
        "rest), local (decode computed the prompt)",
        (*WORKER, "kind"),
    ),
    gauge("baton_pages", "KV pages. state: free, cached, in_use, landing, quarantined", (*WORKER, "state")),
    gauge("baton_pool_tokens", "Tokens that all pages hold. dtype: of their keys and values", (*WORKER, "dtype")),
    gauge(
        "baton_pages_stuck",
        "Quarantined pages whose writer gives no proof and is not killed",
        WORKER,
    ),
    counter("baton_pages_quarantined_total", "Pages that went into quarantine", WORKER),
    counter("baton_pages_cleared_total", "Pages that were cleared because their tenant changed", WORKER),
    counter("baton_ledger_broken_total", "Times that pages of the worker did not add up, each in another way", WORKER),
    counter("baton_requests_failed_alone_total", "Requests that ended because a step with them alone failed", WORKER),
    # adapters
    counter(
        "baton_adapter_requests_total",
        "Ended requests with an adapter; the first hundred names as they are, the rest as _others",
        ("adapter",),
    ),
    gauge("baton_adapters", "Adapters of a worker. state: named, in_memory", (*WORKER, "state")),
    gauge("baton_adapter_waiting_requests", "Requests that wait for a place in memory for their adapter", WORKER),
    gauge("baton_adapter_bytes", "Memory that adapters take", WORKER),
    counter("baton_adapter_loads_total", "Adapters that came into memory", WORKER),
    counter("baton_adapter_evictions_total", "Adapters that left memory for others", WORKER),
    gauge("baton_sessions", "Sessions that are up. peer: gateway, prefill, decode", (*WORKER, "peer")),
    counter("baton_leases_expired_total", "Sessions that ended because the peer was silent", (*WORKER, "peer")),
    # steps of the engine, counted by workers
    histogram("baton_step_seconds", "Time of one step", at.STEP, WORKER),
    histogram("baton_step_rows", "Rows of one step: prompt tokens, last tokens and drafts", at.ROWS, WORKER),
    histogram(
        "baton_step_tokens", "Prompt tokens computed and tokens emitted by one step", at.ITERATION_TOKENS, WORKER
    ),
    histogram(
        "baton_batch_efficiency",
        "Share of a step that was used: requests over max_batch at decode, rows over step_tokens at prefill",
        at.SHARE,
        WORKER,
    ),
    counter("baton_draft_tokens_total", "Drafts that the model verified", WORKER),
    counter("baton_accepted_draft_tokens_total", "Drafts that became tokens", WORKER),
    # tenants, where the gateway has keys; the hundred first of the file by name
    counter("baton_tenant_requests_total", "Requests of a tenant that the gateway let in", TENANT),
    counter(
        "baton_tenant_refused_total",
        "Requests of a tenant that its limits refused. limit: tokens, choices",
        (*TENANT, "limit"),
    ),
    counter("baton_tenant_tokens_total", "Tokens of a tenant. kind: prompt, generated", (*TENANT, "kind")),
    gauge("baton_tenant_choices", "Choices of a tenant that run, and requests that are being read", TENANT),
    # processes
    histogram(
        "baton_event_loop_delay_seconds",
        "How late the event loop runs a timer that is due; up to 2.5 ms are its own rounding",
        at.DELAY,
        WORKER,
    ),
    counter("baton_spans_dropped_total", "Trace spans that the gateway could not export", WORKER),
    gauge("baton_workers_attached", "Workers with a session, draining ones included", ("tier",)),
    gauge("baton_workers_draining", "Workers that drain: they take no new requests", ("tier",)),
    gauge("baton_workers_hung", "Workers that get no new requests until a step of theirs is over", ("tier",)),
    gauge(
        "baton_worker_silent_seconds",
        "Time since anything came from the worker; one that fell silent and lost its session is here until it is back, "
        "for ten minutes at most",
        WORKER,
    ),
    gauge("baton_measures_age_seconds", "Time since the worker's measures last came", WORKER),
    gauge("baton_build_info", "1; what is installed", ("version",)),
    gauge(
        "baton_model_info",
        "1; what is served: name, hash of the weights, numerics class, tokens of a page, context length",
        ("model_name", "model_hash", "numerics", "page_tokens", "context_tokens"),
    ),
    gauge(
        "baton_worker_info",
        "1; which model the worker serves: join it to other metrics of workers",
        (*WORKER, "model_name"),
    ),
)
TABLE = {metric.name: metric for metric in (*BATON, *VLLM, *OTEL)}
