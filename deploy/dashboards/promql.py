"""The patterns of PromQL that our panels repeat.

A gateway exports its own requests and what every worker reports. Several gateways therefore show each worker several
times: `once` keeps one of them, so that sums over workers are right with any number of gateways."""

import re

from deploy.dashboards.panels import PromQuery

WINDOW = "$__rate_interval"
IN_MESH = 'job=~"$job"'

_METRIC = re.compile(r"(?<![\w:$])((?:baton_|baton:|vllm:|gen_ai_)[\w:]+)(\{)?")


def in_mesh(expression: str) -> str:
    """The expression with every metric narrowed to the mesh that the user has chosen."""
    return _METRIC.sub(lambda m: f"{m[1]}{{{IN_MESH}{', ' if m[2] else '}'}", expression)


def query(expression: str, legend: str, *, exemplars: bool = False) -> tuple[PromQuery]:
    """The one query of a panel."""
    return (PromQuery(expression, legend, exemplars),)


def rate(counter: str) -> str:
    return f"rate({counter}[{WINDOW}])"


def once(expression: str) -> str:
    """Series of workers without the gateways that show them."""
    return f"max without (instance, pod) ({expression})"


def mean(histogram: str, where: str = "") -> str:
    """Mean of what a histogram of the gateway observed."""
    return f"sum({rate(f'{histogram}_sum{where}')}) / (sum({rate(f'{histogram}_count{where}')}) > 0)"


def mean_of_workers(histogram: str, by: str, where: str = "") -> str:
    """Mean of what a histogram of the workers observed, by these labels."""
    total, count = (once(rate(f"{histogram}_{part}{where}")) for part in ("sum", "count"))
    return f"sum by ({by}) ({total}) / (sum by ({by}) ({count}) > 0)"


def percentile(share: float, buckets: str, by: str = "le") -> str:
    return f"histogram_quantile({share}, sum by ({by}) ({buckets}))"


def percentiles(histogram: str, where: str = "", *, exemplars: bool = False) -> tuple[PromQuery, ...]:
    """p50, p95 and p99 of a histogram of the gateway."""
    buckets = rate(f"{histogram}_bucket{where}")
    return tuple(
        PromQuery(percentile(share, buckets), f"p{round(share * 100)}", exemplars and share == 0.99)
        for share in (0.5, 0.95, 0.99)
    )


def percentiles_of_workers(histogram: str, where: str = "") -> tuple[PromQuery, ...]:
    """p50, p95 and p99 of a histogram of the workers, all workers together."""
    buckets = once(rate(f"{histogram}_bucket{where}"))
    return tuple(PromQuery(percentile(share, buckets), f"p{round(share * 100)}") for share in (0.5, 0.95, 0.99))


def heat(histogram: str) -> tuple[PromQuery]:
    """Every bucket of a histogram, for a heat map."""
    return (PromQuery(f"sum by (le) (increase({histogram}_bucket[{WINDOW}]))", "{{le}}", exemplars=True),)
