"""Dashboard KV plane: where the pages are, how they travel from prefill to decode, and what goes wrong on the way."""

from deploy.dashboards.panels import (
    BYTES_PER_SECOND,
    COUNT,
    PAGES,
    PER_SECOND,
    SECONDS,
    SHARE,
    TOKENS,
    TOKENS_PER_SECOND,
    Dashboard,
    Panel,
    PanelKind,
    PanelSection,
    PromQuery,
)
from deploy.dashboards.promql import WINDOW, mean_of_workers, once, percentiles, percentiles_of_workers, query, rate

_pages = once("baton_pages")
_held = once('baton_pages{state!~"free|cached"}')
_quarantined = once('baton_pages{state="quarantined"}')
_bytes = once(rate('baton_kv_transfer_bytes_total{result="ok"}'))


def _states(tier: str) -> Panel:
    pages = once(f'baton_pages{{tier="{tier}"}}')
    return Panel(
        f"Pages of {tier} by state",
        "Every page is in one of five states, and their sum is the pool. free and cached pages can be taken at once. "
        "in_use: running requests. landing: being written by prefill. quarantined: kept back until its old writer "
        "is known to be gone.",
        query(f"sum by (state) ({pages})", "{{state}}"),
        PAGES,
        PanelKind.STACK,
        width=8,
    )


_USED = Panel(
    "Share of pages in use",
    "Pages that are neither free nor cached, by worker. From 95% on requests wait for pages, and young ones are "
    "preempted.",
    query(f"sum by (worker) ({_held}) / sum by (worker) ({_pages})", "{{worker}}"),
    SHARE,
    most=1,
    warn_at=0.8,
    alarm_at=0.95,
)

_ROOM = Panel(
    "Text that fits",
    "Tokens that all pages of a worker hold, and the type of their keys and values. --kv int8 or fp8 nearly doubles "
    "them, int4 nearly makes four of them.",
    query(f"sum by (worker, dtype) ({once('baton_pool_tokens')})", "{{worker}}, {{dtype}}"),
    TOKENS,
    PanelKind.BARS,
    width=24,
    height=5,
)
_BYTES = Panel(
    "Pages on their way",
    "Bytes per second that prefill pushes to decode, by transport. shm copies through shared memory of one host, tcp "
    "goes over the network.",
    query(f"sum by (transport) ({_bytes})", "{{transport}}"),
    BYTES_PER_SECOND,
    PanelKind.STACK,
)
_HIDDEN = Panel(
    "Hidden share of the hand-off",
    "Mean share of a prompt's page bytes that were written before its first token was sampled. What is hidden costs "
    "no time.",
    query(mean_of_workers("baton_kv_transfer_hidden_ratio", "transport"), "{{transport}}"),
    SHARE,
    most=1,
)
_EXPOSED = Panel(
    "Exposed part of the hand-off",
    "Time from the first token until all pages have arrived: the part of the transfer that no compute hides.",
    percentiles_of_workers("baton_kv_transfer_exposed_seconds"),
    SECONDS,
)
_TRANSFER = Panel(
    "Whole hand-off",
    "From decode's permission to write until the last page is announced. It contains prefill's compute, since pages "
    "travel while layers are computed.",
    percentiles_of_workers("baton_kv_transfer_seconds", '{result="ok"}'),
    SECONDS,
)
_LANDING = Panel(
    "From permission to the first step",
    "At decode: pages are granted, written, checked, and the request joins the batch.",
    percentiles_of_workers("baton_kv_landing_seconds"),
    SECONDS,
)
_CLIENT = Panel(
    "What a client waits for the hand-off",
    "From the first token to decode's first message.",
    percentiles("baton_handoff_seconds"),
    SECONDS,
)

_ERRORS = Panel(
    "Failed transfers",
    "Reported by prefill: write_failed, session_ended, unreachable. Reported by decode: damaged, missing, "
    "landing_lost, no_progress. The lost pages are sent or computed again.",
    query(f"sum by (reason) ({once(rate('baton_kv_transfer_errors_total'))})", "{{reason}}"),
    PER_SECOND,
    width=6,
)
_RESENT = Panel(
    "Pages sent again",
    "Page bytes that decode asked for a second time, because they were missing or their checksum was wrong. Zero is "
    "normal.",
    query(f"sum by (tier) ({once(rate('baton_kv_resent_bytes_total'))})", "{{tier}}"),
    BYTES_PER_SECOND,
    width=6,
)
_ADMISSIONS = Panel(
    "Who computed the prompts",
    "remote: prefill computed everything. patched: decode computed the rest of a hand-off that stayed incomplete. "
    "local: decode computed the whole prompt.",
    query(f"sum by (kind) ({once(rate('baton_admissions_total'))})", "{{kind}}"),
    PER_SECOND,
    PanelKind.STACK,
    width=6,
)

_LEDGER = Panel(
    "Pages that do not add up",
    "Times that a worker found a page without a holder, or with two, since it started. Zero is normal: all else is "
    "a defect, and a restart of the worker frees the page.",
    query(f"sum by (worker) ({once('baton_ledger_broken_total')})", "{{worker}}"),
    COUNT,
    alarm_at=1,
    width=6,
)

_QUARANTINE = Panel(
    "Quarantined now",
    "Pages that an old writer could still write into. stuck: its writer gives no proof and decode does not kill it, so "
    "a human has to end it. Both are zero in a healthy mesh.",
    (
        PromQuery(f"sum({_quarantined})", "now in quarantine"),
        PromQuery(f"sum({once('baton_pages_stuck')})", "stuck"),
    ),
    PAGES,
    alarm_at=1,
    width=6,
)
_QUARANTINED = Panel(
    "Newly quarantined",
    "How many pages went into quarantine within the window: a worker died or fell silent while it wrote.",
    query(f"sum by (worker) ({once(f'increase(baton_pages_quarantined_total[{WINDOW}])')})", "{{worker}}"),
    PAGES,
    width=6,
)
_SESSIONS = Panel(
    "Sessions",
    "Connections between services that are alive, by the peer's kind. Each prefill worker holds one to each decode "
    "worker that it uses.",
    query(f"sum by (tier, peer) ({once('baton_sessions')})", "{{tier}} to {{peer}}"),
    COUNT,
    width=6,
)
_LEASES = Panel(
    "Expired leases",
    "Sessions that were given up because the peer was silent for 5 s: a lost network, a stopped process, or a host "
    "without processor time.",
    query(f"sum by (peer) ({once(f'increase(baton_leases_expired_total[{WINDOW}])')})", "silent {{peer}}"),
    COUNT,
    width=6,
)
_HITS = Panel(
    "Share of prompt tokens found",
    "Prompt tokens that need not be computed, because an earlier prompt began alike.",
    query(
        f"sum by (tier) ({once(rate('baton_prefix_hit_tokens_total'))}) / (sum by (tier) "
        f"({once(rate('baton_prefix_query_tokens_total'))}) > 0)",
        "{{tier}}",
    ),
    SHARE,
    most=1,
    width=12,
)

_SAVED = Panel(
    "Prompt tokens: found and computed",
    "found: the prefix cache had them, so they cost nothing. computed: the rest.",
    (
        PromQuery(f"sum({rate('baton_prefix_hit_tokens_total')})", "found"),
        PromQuery(
            f"sum({rate('baton_prefix_query_tokens_total')}) - sum({rate('baton_prefix_hit_tokens_total')})", "computed"
        ),
    ),
    TOKENS_PER_SECOND,
    PanelKind.STACK,
    width=12,
)

KV_PLANE = Dashboard(
    "kv-plane",
    "Baton: KV plane",
    "Where the KV pages are, how they travel from prefill to decode, and what goes wrong on the way.",
    (
        PanelSection("Pages", (_states("decode"), _states("prefill"), _USED, _ROOM)),
        PanelSection("Hand-off", (_BYTES, _HIDDEN, _EXPOSED, _TRANSFER, _LANDING, _CLIENT)),
        PanelSection("Repairs", (_ERRORS, _RESENT, _ADMISSIONS, _LEDGER)),
        PanelSection("Quarantine and leases", (_QUARANTINE, _QUARANTINED, _LEASES, _SESSIONS)),
        PanelSection("Prefix cache", (_HITS, _SAVED)),
    ),
)
