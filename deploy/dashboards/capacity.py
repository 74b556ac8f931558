"""Dashboard Capacity: how busy each tier is, what it could do, and how many workers the load needs."""

from deploy.dashboards.panels import (
    COUNT,
    SECONDS,
    SHARE,
    TOKENS_PER_SECOND,
    Dashboard,
    Panel,
    PanelKind,
    PromQuery,
    Section,
)
from deploy.dashboards.promql import mean_of_workers, once, percentile, query, rate

WORKERS = '{tier!="gateway"}'
COMFORTABLE = 0.7  # share of time in steps, above which queues grow quickly

_busy_mean = once("rate(baton_step_seconds_sum[$__range])")
_busy_prefill = once('rate(baton_step_seconds_sum{tier="prefill"}[$__range])')
_busy_decode = once('rate(baton_step_seconds_sum{tier="decode"}[$__range])')
_busy = once(rate("baton_step_seconds_sum"))
_tokens = once(rate("baton_step_tokens_sum"))
_speed = f"sum by (tier) ({_tokens}) / (sum by (tier) ({_busy}) > 0)"  # tokens per second that one busy worker computes

_BUSY = Panel(
    "Busy share by worker",
    "Share of time that a worker spends inside steps. At 70% queues begin to grow quickly; at 100% the worker is the "
    "limit.",
    query(f"clamp_max(sum by (worker) ({_busy}), 1)", "{{worker}}"),
    SHARE,
    most=1,
    warn_at=COMFORTABLE,
    alarm_at=0.95,
)
_EFFICIENCY = Panel(
    "How full the steps are",
    "Mean over steps: at decode requests of max_batch, at prefill rows of step_tokens. Busy and nearly empty means "
    "that more load would cost hardly any time.",
    query(mean_of_workers("baton_batch_efficiency", "tier"), "{{tier}}"),
    SHARE,
    most=1,
)
_STEP = Panel(
    "Duration of a step, p95",
    "At decode this is the floor of the time between tokens.",
    query(percentile(0.95, once(rate("baton_step_seconds_bucket")), "le, tier"), "{{tier}}"),
    SECONDS,
)


def _against(tier: str) -> Panel:
    here = f'{{tier="{tier}"}}'
    tokens, busy = (once(rate(f"baton_step_{what}_sum{here}")) for what in ("tokens", "seconds"))
    return Panel(
        f"Tokens per second of {tier}",
        "now: prompt tokens computed and tokens emitted, all workers of the tier. possible: the measured speed of "
        "its busy workers, times their number. The space between the two lines is your reserve; decode's possible "
        "speed rises with its batch.",
        (
            PromQuery(f"sum by (job) ({tokens})", "now"),
            PromQuery(
                f"sum by (job) ({tokens}) / (sum by (job) ({busy}) > 0) * max by (job) (baton_workers_attached{here})",
                "possible",
            ),
        ),
        TOKENS_PER_SECOND,
    )


_SPEED = Panel(
    "Measured speed of a busy worker",
    "Tokens of a step over its duration: what one worker of the tier computes per second while it is busy.",
    query(_speed, "{{tier}}"),
    TOKENS_PER_SECOND,
)

_WAITING = Panel(
    "Waiting requests",
    "gateway: no worker has room. prefill: the prompt is not begun. decode: pages or a place in the batch are missing.",
    (
        PromQuery('sum by (tier) (baton_waiting_requests{tier="gateway"})', "{{tier}}"),
        PromQuery(f"sum by (tier) ({once(f'baton_waiting_requests{WORKERS}')})", "{{tier}}"),
    ),
    COUNT,
)
_RUNNING = Panel(
    "Running requests by worker",
    "Requests that each worker computes now. Decode workers should be about equal.",
    query(f"sum by (worker) ({once(f'baton_running_requests{WORKERS}')})", "{{worker}}"),
    COUNT,
    PanelKind.STACK,
)
_DRAIN = Panel(
    "Time to compute what waits",
    "Prompt tokens that are not computed yet, over the measured speed of all workers of the tier. A new prompt waits "
    "about this long.",
    query(
        f"sum by (tier) ({once(f'baton_queued_tokens{WORKERS}')}) / ({_speed}) / on (tier) (max by (tier) "
        "(baton_workers_attached) > 0)",
        "{{tier}}",
    ),
    SECONDS,
)

_NEEDED = Panel(
    "Workers that the load needs",
    f"Workers that would be {COMFORTABLE:.0%} busy with this load, over the last five minutes. Compare with the "
    "workers that are attached.",
    query(f"sum by (tier) ({_busy_mean}) / {COMFORTABLE}", "{{tier}}"),
    COUNT,
    PanelKind.BARS,
    width=6,
    height=6,
)
_ATTACHED = Panel(
    "Workers attached",
    "Workers that a gateway can use now.",
    query("max by (tier) (baton_workers_attached)", "{{tier}}"),
    COUNT,
    PanelKind.BARS,
    width=6,
    height=6,
)
_RATIO = Panel(
    "Prefill workers per decode worker",
    "needed: the ratio of the time that both tiers spent in steps, over the time shown. attached: what you have. "
    "Where needed is larger, move machines from decode to prefill.",
    (
        PromQuery(f"sum({_busy_prefill}) / (sum({_busy_decode}) > 0)", "needed"),
        PromQuery("avg(baton:prefill_per_decode:attached)", "attached"),
    ),
    COUNT,
    PanelKind.NUMBER,
    width=6,
    height=6,
)
_PREFIX = Panel(
    "Prompt tokens that were cached",
    "Share of prompt tokens that the prefix caches had over the time shown. Each cached token is prefill work saved.",
    query(
        "sum by (tier) (rate(baton_prefix_hit_tokens_total[$__range])) / (sum by (tier) "
        "(rate(baton_prefix_query_tokens_total[$__range])) > 0)",
        "{{tier}}",
    ),
    SHARE,
    PanelKind.NUMBER,
    width=6,
    height=6,
    most=1,
)

_DRAFTS = Panel(
    "Accepted drafts",
    "Share of guessed tokens that the model confirmed. Each one saves a row of a later step.",
    query(
        f"sum({once(rate('baton_accepted_draft_tokens_total'))}) / (sum({once(rate('baton_draft_tokens_total'))}) > 0)",
        "accepted",
    ),
    SHARE,
    most=1,
)
_LOOP = Panel(
    "Delay of the event loops, p99",
    "How late a process runs a timer that is due. Above 100 ms everything that the process serves waits: it lacks "
    "processor time.",
    query(percentile(0.99, once(rate("baton_event_loop_delay_seconds_bucket")), "le, worker"), "{{worker}}"),
    SECONDS,
    alarm_at=0.1,
)
_ROUTING = Panel(
    "Cost of a routing decision, p99",
    "Time that the gateway needs to choose the workers of one request.",
    query(percentile(0.99, rate("baton_route_overhead_seconds_bucket")), "p99"),
    SECONDS,
)

CAPACITY = Dashboard(
    "capacity",
    "Baton: capacity",
    "How busy each tier is, what it could do, and how many workers the load needs.",
    (
        Section("Utilisation", (_BUSY, _EFFICIENCY, _STEP)),
        Section("Speed", (_against("prefill"), _against("decode"), _SPEED)),
        Section("Queues", (_WAITING, _RUNNING, _DRAIN)),
        Section("Sizing", (_NEEDED, _ATTACHED, _RATIO, _PREFIX)),
        Section("What else costs time", (_DRAFTS, _LOOP, _ROUTING)),
    ),
)
