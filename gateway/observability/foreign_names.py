"""Metrics under the names of others: vLLM's, for its dashboards and autoscalers, and OpenTelemetry's.

Each shows what a metric of gateway/observability/metric_names.py counts, as the other program defines it."""

from gateway.observability.metric_spec import counter, gauge, histogram
from mesh.telemetry import buckets as at

MODEL = ("model_name", "engine")
GEN_AI = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model", "gen_ai_response_model")

VLLM = (
    gauge(
        "vllm:num_requests_running",
        "Requests of this gateway whose prompt is being computed or whose tokens are being generated, on any worker",
        MODEL,
    ),
    gauge("vllm:num_requests_waiting", "Requests of this gateway that wait: for a worker, their turn or pages", MODEL),
    gauge(
        "vllm:kv_cache_usage_perc",
        "KV pages of all decode workers that are not free or cached, 1 means 100 percent",
        MODEL,
    ),
    gauge(
        "vllm:cache_config_info",
        "1; tokens of a page, and pages of all decode workers together",
        (*MODEL, "block_size", "num_gpu_blocks"),
    ),
    counter("vllm:num_preemptions_total", "Requests of this gateway that a decode worker preempted", MODEL),
    counter("vllm:prompt_tokens_total", "Prompt tokens of requests that have their first token", MODEL),
    counter("vllm:generation_tokens_total", "Generated tokens, as the clients' usage counts them", MODEL),
    counter("vllm:prefix_cache_queries_total", "Prompt tokens that workers looked up in their prefix caches", MODEL),
    counter("vllm:prefix_cache_hits_total", "Prompt tokens that workers found in their prefix caches", MODEL),
    counter(
        "vllm:request_success_total",
        "Ended requests. finished_reason: stop, length, abort (cancelled), error",
        (*MODEL, "finished_reason"),
    ),
    counter("vllm:spec_decode_num_drafts_total", "Steps of a request that verified drafts", MODEL),
    counter("vllm:spec_decode_num_draft_tokens_total", "Drafts that were verified", MODEL),
    counter("vllm:spec_decode_num_accepted_tokens_total", "Drafts that became tokens", MODEL),
    counter(
        "vllm:spec_decode_num_accepted_tokens_per_pos_total",
        "Drafts that became tokens, by their place among the drafts of a step, from 0",
        (*MODEL, "position"),
    ),
    histogram(
        "vllm:time_to_first_token_seconds", "Acceptance by the gateway to the first token there", at.FIRST_TOKEN, MODEL
    ),
    histogram(
        "vllm:inter_token_latency_seconds",
        "Time between two steps' tokens of one request, at the gateway",
        at.PER_TOKEN,
        MODEL,
    ),
    histogram(
        "vllm:request_time_per_output_token_seconds",
        "First token to last, over the number of tokens after the first; requests that ended well",
        at.PER_TOKEN,
        MODEL,
    ),
    histogram("vllm:e2e_request_latency_seconds", "Acceptance to the end; requests that ended well", at.LATENCY, MODEL),
    histogram(
        "vllm:request_queue_time_seconds",
        "Acceptance until the first step of the prompt, on whichever worker computes it: waiting at the gateway, "
        "at prefill, and for decode's pages; requests that ended well",
        at.LATENCY,
        MODEL,
    ),
    histogram(
        "vllm:request_prefill_time_seconds",
        "First step of the prompt, on whichever worker computes it, to the first token; requests that ended well",
        at.LATENCY,
        MODEL,
    ),
    histogram(
        "vllm:request_decode_time_seconds",
        "First token to the end, the hand-off included; requests that ended well",
        at.LATENCY,
        MODEL,
    ),
    histogram(
        "vllm:request_inference_time_seconds",
        "First step of the prompt to the end: prefill time and decode time; requests that ended well",
        at.LATENCY,
        MODEL,
    ),
    histogram("vllm:request_prompt_tokens", "Prompt tokens of a request", at.REQUEST_TOKENS, MODEL, to_context=True),
    histogram(
        "vllm:request_generation_tokens", "Generated tokens of a request", at.REQUEST_TOKENS, MODEL, to_context=True
    ),
    histogram(
        "vllm:request_max_num_generation_tokens",
        "Generated tokens of a request's longest choice",
        at.REQUEST_TOKENS,
        MODEL,
        to_context=True,
    ),
    histogram("vllm:request_params_n", "Choices that a request asks for", at.CHOICES, MODEL),
    histogram("vllm:request_params_max_tokens", "max_tokens of a request", at.REQUEST_TOKENS, MODEL, to_context=True),
    histogram(
        "vllm:iteration_tokens_total",
        "Prompt tokens computed and tokens emitted by one step of any worker",
        at.ITERATION_TOKENS,
        MODEL,
    ),
)

OTEL = (
    histogram(
        "gen_ai_server_request_duration_seconds",
        "Acceptance to the end; error_type is empty for requests that ended well",
        at.OTEL_DURATION,
        (*GEN_AI, "error_type"),
    ),
    histogram(
        "gen_ai_server_time_to_first_token_seconds",
        "Acceptance to the first token; requests that got one",
        at.OTEL_FIRST_TOKEN,
        GEN_AI,
    ),
    histogram(
        "gen_ai_server_time_per_output_token_seconds",
        "First token to last, over the number of tokens after the first; requests that ended well",
        at.OTEL_PER_TOKEN,
        GEN_AI,
    ),
)
