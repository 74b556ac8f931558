"""The words in which our dashboards are written: queries, panels and rows as plain data, without Grafana's JSON.

Rows fill themselves from left to right on 24 columns. `grafana.py` turns a dashboard into the JSON that
Grafana loads."""

from dataclasses import dataclass
from enum import Enum


class PanelKind(Enum):
    LINES = "lines"
    STACK = "stack"  # areas upon each other
    SHARES = "shares"  # areas upon each other that fill the panel: parts of a whole
    NUMBER = "number"  # the last value, large, above its course
    BARS = "bars"  # the last value of each series as a horizontal bar
    HEATMAP = "heatmap"  # a histogram's buckets over time
    TRACE = "trace"  # one request's spans, from the trace back end
    TRACE_LIST = "trace list"  # a table of traces to choose from
    TEXT = "text"


# Grafana's names of units.
SECONDS, SHARE, BYTES, BYTES_PER_SECOND, COUNT = "s", "percentunit", "bytes", "Bps", "short"
REQUESTS_PER_SECOND, PER_SECOND, TOKENS_PER_SECOND, PAGES = "reqps", "ops", "suffix: tokens/s", "suffix: pages"
TOKENS = "suffix: tokens"

# The same thing has the same colour on every dashboard: label -> its value -> Grafana's name of a colour.
COLOURS = {
    "path": {"remote": "blue", "local": "orange", "resumed": "purple", "none": "red"},
    "tier": {"prefill": "blue", "decode": "orange", "gateway": "green"},
    "state": {"free": "green", "cached": "blue", "in_use": "orange", "landing": "yellow", "quarantined": "red"},
    "status": {"ok": "green", "error": "red", "cancelled": "yellow"},
}
PERCENTILE_COLOURS = {"p50": "green", "p95": "orange", "p99": "red"}


@dataclass(frozen=True, slots=True)
class PromQuery:
    expression: str
    legend: str  # Grafana's template, {{label}}
    exemplars: bool = False  # draw single requests as dots that lead to their traces


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    description: str  # what a newcomer learns here, and what is good or bad
    queries: tuple[PromQuery, ...] = ()
    unit: str = COUNT
    kind: PanelKind = PanelKind.LINES
    width: int = 8
    height: int = 8
    most: float | None = None  # upper end of the axis
    warn_at: float | None = None  # from here on yellow
    alarm_at: float | None = None  # from here on red; below `warn_at` where small values are the bad ones
    text: str = ""  # content of a TEXT panel


@dataclass(frozen=True, slots=True)
class PanelSection:
    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Dashboard:
    name: str  # name of the file, without its ending
    title: str
    description: str
    sections: tuple[PanelSection, ...]
    asks_for_trace: bool = False  # has a box for a trace id, and panels from the trace back end
