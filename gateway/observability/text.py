"""Writes metrics as text: Prometheus' classic format, or OpenMetrics, which also carries exemplars.

It writes by itself, because the writer of prometheus-client turns `vllm:` into `vllm_` for every scraper that does not
ask for other escaping, and takes 30 µs for a line. Tests read both formats with that library's parsers."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from gateway.observability.histograms import Exemplar, HistogramView
from gateway.observability.metric_spec import MetricKind, MetricSpec
from mesh.telemetry.buckets import Buckets

CLASSIC = "text/plain; version=0.0.4; charset=utf-8"
OPEN = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_QUALITY = re.compile(r"q=([0-9]+(?:\.[0-9]*)?)")
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


@dataclass(frozen=True, slots=True)
class MetricSeries:
    """One line of a metric, or all lines of one of its histograms."""

    values: tuple[str, ...]  # values of the metric's labels
    value: float | HistogramView


def wants_openmetrics(accept: str) -> bool:
    """Whether the Accept header prefers OpenMetrics; without it the answer is the classic format."""
    qualities = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for part in accept.lower().split(","):
        kind, _, rest = part.strip().partition(";")
        found = _QUALITY.search(rest)
        if (kind := kind.strip()) in qualities:
            qualities[kind] = max(qualities[kind], float(found[1]) if found else 1.0)
    return qualities["application/openmetrics-text"] > qualities["text/plain"]


def head(spec: MetricSpec, *, openmetrics: bool) -> str:
    name = spec.name.removesuffix("_total") if openmetrics and spec.kind is MetricKind.COUNTER else spec.name
    return f"# HELP {name} {spec.help.translate(_ESCAPES)}\n# TYPE {name} {spec.kind.value}\n"


def lines(spec: MetricSpec, series: Iterable[MetricSeries], *, wall_offset: float | None) -> Iterator[str]:
    """The text of each series. `wall_offset` turns the event loop's clock into Unix time; None: the classic format,
    without exemplars."""
    for each in series:
        pairs = zip(spec.labels, each.values, strict=True)
        labels = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in pairs)
        if isinstance(each.value, HistogramView):
            yield _histogram(spec.name, labels, each.value, wall_offset)
        else:
            name = f"{spec.name}{{{labels}}}" if labels else spec.name
            yield f"{name} {_number(each.value)}\n"


def _histogram(name: str, labels: str, view: HistogramView, wall_offset: float | None) -> str:
    before = f"{name}_bucket{{{labels},le=" if labels else f"{name}_bucket{{le="
    after = f"{{{labels}}}" if labels else ""
    sums, uppers = view.cumulative(), _uppers(view.bounds)
    if wall_offset is None or not view.has_seen:
        text = [f"{before}{upper}{count}\n" for upper, count in zip(uppers, sums, strict=True)]
    else:
        text = [
            f"{before}{upper}{count}{_exemplar(seen, wall_offset)}\n"
            for upper, count, seen in zip(uppers, sums, view.seen, strict=True)
        ]
    text.append(f"{name}_count{after} {sums[-1]}\n{name}_sum{after} {_number(view.sum)}\n")
    return "".join(text)


@cache
def _uppers(bounds: Buckets) -> tuple[str, ...]:
    """The ends of the labels of all buckets."""
    return tuple(f'"{upper}"}} ' for upper in (*map(float, bounds), "+Inf"))


def _exemplar(seen: Exemplar | None, wall_offset: float) -> str:
    if seen is None:
        return ""
    return f' # {{trace_id="{seen.trace.trace_id:032x}"}} {_number(seen.value)} {seen.seconds + wall_offset:.3f}'


def _number(value: float) -> str:
    return str(int(value)) if isinstance(value, int) else repr(value)
