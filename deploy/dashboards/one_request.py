"""Dashboard One request: from a slow dot in a histogram to the waterfall of the request behind it."""

from deploy.dashboards.panels import SECONDS, Dashboard, Panel, PanelKind, PromQuery, Section
from deploy.dashboards.promql import heat, mean, percentiles

_HOW = Panel(
    "How to find a request",
    "Three ways from a symptom to the trace of one request.",
    kind=PanelKind.TEXT,
    width=24,
    height=4,
    text=(
        "**Click a dot** in a histogram below: it is one request, and its trace id fills the box above. "
        "**Or copy a trace id** from the gateway's log or from the response header `x-trace-id` into that box. "
        "**Or choose** one from the table of the last requests.\n"
        "In the waterfall each bar is a stage. queue means waiting, compute and generate mean work, kv.send and "
        "kv.receive are the hand-off of the KV pages, and the bars together cover the whole life of the request."
    ),
)
_TRACE = Panel(
    "Waterfall of the request",
    "All spans of the trace, over client, Envoy, gateway, prefill and decode. The bars tile the request's whole "
    "life: a gap of more than 2% would be a fault of Baton.",
    (PromQuery("${trace_id}", ""),),
    kind=PanelKind.TRACE,
    width=24,
    height=14,
)
_LIST = Panel(
    "The last requests",
    "The latest traces of the gateway. Click an id to see its waterfall.",
    (PromQuery("gateway", ""),),
    kind=PanelKind.TRACE_LIST,
    width=24,
    height=7,
)

_FIRST_TOKEN = Panel(
    "Time to first token",
    "From acceptance to the first token, for all requests. Each dot is one request; click it to see where its time "
    "went.",
    heat("baton_time_to_first_token_seconds"),
    SECONDS,
    PanelKind.HEATMAP,
    width=12,
    height=9,
)
_WHOLE = Panel(
    "Whole request",
    "From acceptance to the end of the answer. Long answers stand high here without being slow: compare with the "
    "time between tokens.",
    heat("baton_request_seconds"),
    SECONDS,
    PanelKind.HEATMAP,
    width=12,
    height=9,
)
_FIRST_TOKEN_LINES = Panel(
    "Time to first token, percentiles",
    "p50: half of the requests are faster. p99: one in a hundred is slower. Dots are single requests with a trace.",
    percentiles("baton_time_to_first_token_seconds", exemplars=True),
    SECONDS,
    width=12,
)
_GAPS = Panel(
    "Time between tokens, percentiles",
    "Pauses between two tokens of one request. Dots are single requests with a trace.",
    percentiles("baton_inter_token_latency_seconds", exemplars=True),
    SECONDS,
    width=12,
)

_STAGES = Panel(
    "Where the time goes, mean request",
    "Seconds that a request spends in each stage. waiting: until its first step, wherever it waits. prefill: the "
    "prompt is computed. decode: the answer is generated, hand-off included. Compare one trace with this to see what "
    "is unusual.",
    tuple(
        PromQuery(mean(f"vllm:request_{stage}_time_seconds"), legend)
        for stage, legend in (("queue", "waiting"), ("prefill", "computing the prompt"), ("decode", "generating"))
    ),
    SECONDS,
    PanelKind.STACK,
    width=12,
)
_HANDOFF = Panel(
    "What a client waits for the hand-off",
    "From the first token, which prefill sends at once, to decode's first message. Most of the transfer is over by "
    "then.",
    percentiles("baton_handoff_seconds"),
    SECONDS,
    width=12,
)
_QUEUE = Panel(
    "Waiting for the first step",
    "From a prompt's arrival at a worker until its first step, prefill and decode together.",
    percentiles("baton_prefill_queue_seconds"),
    SECONDS,
    width=12,
)
_COMPUTE = Panel(
    "Computing the prompt",
    "From a prompt's first step until its first token is sampled, prefill and decode together.",
    percentiles("baton_prefill_compute_seconds"),
    SECONDS,
    width=12,
)

ONE_REQUEST = Dashboard(
    "one-request",
    "Baton: one request",
    "From a slow dot in a histogram to the waterfall of the request behind it.",
    (
        Section("One request", (_HOW, _TRACE, _LIST)),
        Section("All requests: find the unusual one", (_FIRST_TOKEN, _WHOLE, _FIRST_TOKEN_LINES, _GAPS)),
        Section("Stages", (_STAGES, _HANDOFF, _QUEUE, _COMPUTE)),
    ),
    asks_for_trace=True,
)
