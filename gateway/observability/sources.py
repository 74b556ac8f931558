"""Where the series of one metric come from: a function that makes them when the metric is asked for."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain

from gateway.observability.histograms import HistogramFamily
from gateway.observability.metric_spec import MetricSpec
from gateway.observability.text import MetricSeries
from mesh.telemetry.buckets import Buckets

Source = Callable[[MetricSpec], Iterable[MetricSeries]]


def joined(sources: list[Source]) -> Source:
    """The series of all models."""
    return lambda spec: chain.from_iterable(source(spec) for source in sources)


def nothing(_: MetricSpec) -> Iterable[MetricSeries]:
    """Only workers have series of this metric."""
    return ()


def by_value(counts: Mapping[str, int]) -> dict[tuple[str, ...], int]:
    return {(value,): count for value, count in counts.items()}


def by_label(counts: Mapping[str, int]) -> Source:
    return lambda _: (MetricSeries((value,), count) for value, count in counts.items())


def views(
    family: HistogramFamily,
    *,
    by: tuple[str, ...] = (),
    constant: tuple[str, ...] = (),
    between: tuple[str, ...] = (),
    where: Mapping[str, str] | None = None,
    most: float | None = None,
) -> Source:
    """The family as a metric: its labels are `constant`, then those of `by`, with `between` behind the first of them.
    `most` cuts the buckets of metrics that end at the model's context."""
    wanted = where or {}

    def source(spec: MetricSpec) -> Iterator[MetricSeries]:
        bounds: Buckets = spec.buckets
        if spec.to_context and most is not None:
            bounds = tuple(bound for bound in bounds if bound <= most)
        found = family.views(bounds, by, lambda labels: all(labels[key] == value for key, value in wanted.items()))
        for values, view in found.items():
            yield MetricSeries((*constant, *values[:1], *between, *values[1:]), view)

    return source
