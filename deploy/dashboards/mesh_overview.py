"""Dashboard Mesh overview: is the mesh well, and do requests really travel from prefill to decode?"""

from deploy.dashboards.panels import (
    COUNT,
    PER_SECOND,
    REQUESTS_PER_SECOND,
    SECONDS,
    SHARE,
    TOKENS_PER_SECOND,
    Dashboard,
    Panel,
    PanelKind,
    PanelSection,
    PromQuery,
)
from deploy.dashboards.promql import WINDOW, once, percentile, percentiles, query, rate

WORKERS = '{tier!="gateway"}'

_PATHS = Panel(
    "Share of requests by path",
    "How requests were computed. remote: prefill computed the prompt and handed its KV pages to decode, which is "
    "what two tiers are for. local: decode computed the prompt itself, because the prefix cache had nearly all of it "
    "or no prefill worker could be used. resumed: a worker was lost and another one went on. none: no worker took "
    "the request.",
    query(f"sum by (path) ({rate('baton_requests_total')})", "{{path}}"),
    SHARE,
    PanelKind.SHARES,
    width=12,
    height=9,
)

_STATUS = Panel(
    "Requests by outcome",
    "Requests that ended, per second. ok: the client has the whole answer. cancelled: the client went away. error: "
    "the gateway ended the request; the panel Errors says why.",
    query(f"sum by (status) ({rate('baton_requests_total')})", "{{status}}"),
    REQUESTS_PER_SECOND,
    PanelKind.STACK,
    width=12,
    height=9,
)

_FIRST_TOKEN_NOW = Panel(
    "First token, p95",
    "19 of 20 requests have their first token within this time.",
    query(percentile(0.95, rate("baton_time_to_first_token_seconds_bucket")), "p95"),
    SECONDS,
    PanelKind.NUMBER,
    width=4,
    height=5,
)
_GAP_NOW = Panel(
    "Between tokens, p95",
    "19 of 20 gaps between two tokens of a request are at most this long.",
    query(percentile(0.95, rate("baton_inter_token_latency_seconds_bucket")), "p95"),
    SECONDS,
    PanelKind.NUMBER,
    width=4,
    height=5,
)
_TOKENS_NOW = Panel(
    "Tokens generated",
    "Tokens per second that clients receive, all requests together.",
    query(f"sum({rate('baton_generation_tokens_total')})", "tokens"),
    TOKENS_PER_SECOND,
    PanelKind.NUMBER,
    width=4,
    height=5,
)
_GOODPUT = Panel(
    "Goodput",
    "Share of the requests of the last five minutes that ended well and kept the limits for first token and token "
    "gap. The limits stand in deploy/prometheus/rules.yaml. The true share is this one or a little more.",
    query("avg(baton:goodput:share5m)", "goodput"),
    SHARE,
    PanelKind.NUMBER,
    width=4,
    height=5,
    most=1,
    warn_at=0.99,
    alarm_at=0.9,
)
_HIDDEN = Panel(
    "Hidden hand-off",
    "Share of the KV pages that travelled while prefill was still computing. 100% means that the hand-off cost the "
    "client no time.",
    query("avg(baton:kv_hidden:share5m)", "hidden"),
    SHARE,
    PanelKind.NUMBER,
    width=4,
    height=5,
    most=1,
)
_WORKERS = Panel(
    "Workers",
    "Workers of each tier that a gateway can use.",
    query("max by (tier) (baton_workers_attached)", "{{tier}}"),
    COUNT,
    PanelKind.NUMBER,
    width=4,
    height=5,
)

_FIRST_TOKEN = Panel(
    "Time to first token",
    "From the gateway's acceptance of a request to its first token. A dot is one request: click it to see its trace.",
    percentiles("baton_time_to_first_token_seconds", exemplars=True),
    SECONDS,
)
_GAP = Panel(
    "Time between tokens",
    "Pauses between two tokens of a request, as the gateway sees them. Peaks are what a reader feels as stutter.",
    percentiles("baton_inter_token_latency_seconds"),
    SECONDS,
)
_WHOLE = Panel(
    "Whole request by path, p95",
    "From acceptance to the end of the answer. Resumed requests take longer, since part of their work was done twice.",
    query(percentile(0.95, rate("baton_request_seconds_bucket"), "le, path"), "{{path}}"),
    SECONDS,
)

_TOKENS = Panel(
    "Tokens per tier",
    "Prompt tokens that are computed and tokens that are emitted, per second. Where decode shows peaks of the size "
    "of prefill, it computes prompts by itself.",
    query(f"sum by (tier) ({once(rate('baton_step_tokens_sum'))})", "{{tier}}"),
    TOKENS_PER_SECOND,
)
_WAITING = Panel(
    "Waiting requests",
    "gateway: no worker has room. prefill: the prompt is not begun. decode: pages or a place in the batch are "
    "missing. A queue that only grows means that this tier is too small.",
    (
        PromQuery('sum by (tier) (baton_waiting_requests{tier="gateway"})', "{{tier}}"),
        PromQuery(f"sum by (tier) ({once(f'baton_waiting_requests{WORKERS}')})", "{{tier}}"),
    ),
)
_ROUTES = Panel(
    "Why a route was taken",
    "Decisions of the gateway's router. local_cached is good: the prefix cache has the prompt. local_no_prefill is "
    "not: no prefill worker could be used. local_faster: prefill has queues, and decode computes beside its batch. "
    "wait: no worker had room.",
    query(f"sum by (decision) ({rate('baton_route_decisions_total')})", "{{decision}}"),
    PER_SECOND,
)

_ERRORS = Panel(
    "Errors",
    "Errors sent to clients, by reason; docs/operations.md explains each reason. Requests with mistakes of the "
    "client's own count here, too.",
    query(f"sum by (reason) ({rate('baton_errors_total')})", "{{reason}}"),
    PER_SECOND,
)
_RESUMES = Panel(
    "Resumed attempts",
    "Requests that a worker lost and another one continued, by reason. The client notices a pause, nothing else.",
    query(f"sum by (reason) ({rate('baton_resumes_total')})", "{{reason}}"),
    PER_SECOND,
)
_REFUSED = Panel(
    "Refused at admission",
    "Requests that the gateway refused before anything was computed. queue, deadline: they would have waited too long "
    "behind others. max_waiting: too many wait already. no_worker: no worker serves the model. Zero is normal; more "
    "load than the mesh can compute shows here, and not as late answers.",
    query(f"sum by (reason) ({rate('baton_refusals_total')})", "{{reason}}"),
    PER_SECOND,
    PanelKind.STACK,
)
_HUNG = Panel(
    "Hung workers",
    "Workers whose connections live while no step of theirs ends. The gateway sends them no requests and moves those "
    "that they have. Zero is normal.",
    query("max by (tier) (baton_workers_hung)", "{{tier}}"),
    COUNT,
    alarm_at=1,
)
_SILENT = Panel(
    "Silent workers",
    "Time since anything came from a worker, where it is more than three heartbeats: the process is stopped, or the "
    "network is. After 5 s its requests go on elsewhere. It is shown until it is back, for ten minutes at most. Empty "
    "is normal.",
    query("max by (worker) (baton_worker_silent_seconds) > 3", "{{worker}}"),
    SECONDS,
)
_FAILED_ALONE = Panel(
    "Requests that failed alone",
    "Requests that ended within the window because a step with them alone failed. The others of their batch went on. "
    "Zero is normal; the worker's log has the reason.",
    query(f"sum by (worker) ({once(f'increase(baton_requests_failed_alone_total[{WINDOW}])')})", "{{worker}}"),
    COUNT,
    alarm_at=1,
)
_BURN = Panel(
    "Burn of the error budget",
    "How fast requests outside the limits use up what the objective allows. 1: exactly what it allows. 14: a month's "
    "allowance is gone in two days, and an alert fires. ttft: first token; itl: between tokens.",
    query("max by (slo) (baton:slo_burn:rate5m)", "{{slo}}"),
    COUNT,
    warn_at=1,
    alarm_at=14.4,
)

MESH_OVERVIEW = Dashboard(
    "mesh-overview",
    "Baton: mesh overview",
    "Is the mesh well, and do requests really travel from prefill to decode?",
    (
        PanelSection("How requests travel", (_PATHS, _STATUS)),
        PanelSection("Now", (_FIRST_TOKEN_NOW, _GAP_NOW, _TOKENS_NOW, _GOODPUT, _HIDDEN, _WORKERS)),
        PanelSection("What clients feel", (_FIRST_TOKEN, _GAP, _WHOLE)),
        PanelSection("Where the work is", (_TOKENS, _WAITING, _ROUTES)),
        PanelSection("What goes wrong", (_ERRORS, _RESUMES, _BURN, _REFUSED, _HUNG, _SILENT, _FAILED_ALONE)),
    ),
)
