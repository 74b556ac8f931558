"""Names in PromQL: which metrics and labels an expression uses, and which of them neither the table of metrics nor a
recording rule knows."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from gateway.observability.metric_names import TABLE
from gateway.observability.metric_spec import MetricKind

RULES = Path(__file__).resolve().parents[3] / "deploy/prometheus/rules.yaml"
SCRAPED = {"job", "instance", "pod"}  # labels that Prometheus adds
RECORDED = {"slo", "path", "status", "worker", "tier"}  # labels that recording rules keep or set

_METRIC = re.compile(r"(?<![\w:$\"])(?:baton_|baton:|vllm:|gen_ai_server_)[\w:]+")
_MATCHERS = re.compile(r"\{([^{}]*)\}")
_GROUPED = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^()]*)\)")


@cache
def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


@cache
def recorded() -> frozenset[str]:
    return frozenset(rule["record"] for rule in rules() if "record" in rule)


@cache
def exported() -> dict[str, frozenset[str]]:
    """Every name that a scrape brings, with its labels."""
    found = dict[str, frozenset[str]]()
    for name, spec in TABLE.items():
        own = frozenset(spec.labels) | SCRAPED
        if spec.kind is MetricKind.HISTOGRAM:
            found |= {f"{name}_sum": own, f"{name}_count": own, f"{name}_bucket": own | {"le"}}
        else:
            found[name] = own
    return found


def metrics_in(expression: str) -> set[str]:
    return set(_METRIC.findall(expression))


def labels_of(metric: str) -> frozenset[str]:
    return exported().get(metric) or frozenset(RECORDED | SCRAPED | {"le"})


def unknown_metrics(expression: str) -> set[str]:
    return {name for name in metrics_in(expression) if name not in exported() and name not in recorded()}


def unknown_labels(expression: str) -> set[str]:
    """Labels that no metric of the expression has."""
    named = {label for match in _MATCHERS.findall(expression) for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", match)}
    named |= {label.strip() for group in _GROUPED.findall(expression) for label in group.split(",") if label.strip()}
    return named - {label for metric in metrics_in(expression) for label in labels_of(metric)}
