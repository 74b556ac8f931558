"""One metric as a value: its kind, help, labels and buckets, and short ways to write one down.

Names are written as PromQL writes them: a counter ends with `_total`, a histogram stands without `_bucket`."""

from dataclasses import dataclass
from enum import Enum

from mesh.telemetry.buckets import Buckets


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


def counter(name: str, help: str, labels: tuple[str, ...] = ()) -> MetricSpec:
    return MetricSpec(name, MetricKind.COUNTER, help, labels)


def gauge(name: str, help: str, labels: tuple[str, ...] = ()) -> MetricSpec:
    return MetricSpec(name, MetricKind.GAUGE, help, labels)


def histogram(
    name: str, help: str, buckets: Buckets, labels: tuple[str, ...] = (), *, to_context: bool = False
) -> MetricSpec:
    return MetricSpec(name, MetricKind.HISTOGRAM, help, labels, buckets, to_context)
