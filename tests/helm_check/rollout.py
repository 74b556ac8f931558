"""Whether a roll-out keeps the ratio of the tiers: at every percentage both tiers of every model move the same share of
their workers, rounded up, so that new workers of one tier always find new workers of the other."""

from collections.abc import Iterator
from math import ceil
from typing import Any

from tests.helm_check.chart import documents, render

PERCENTAGES = (0, 1, 25, 50, 99, 100)
REPLICAS = {"prefill": 8, "decode": 4, "small-prefill": 1, "small-decode": 6}
VALUES: dict[str, Any] = {
    "model": {"path": "/models/a", "claimName": "models"},
    "prefill": {"replicas": REPLICAS["prefill"]},
    "decode": {"replicas": REPLICAS["decode"]},
    "models": {
        "small": {
            "path": "/models/b",
            "prefill": {"replicas": REPLICAS["small-prefill"]},
            "decode": {"replicas": REPLICAS["small-decode"]},
        }
    },
}


def problems() -> Iterator[str]:
    for percent in PERCENTAGES:
        moved = moved_workers(percent)
        for component, count in REPLICAS.items():
            if moved.get(component) != (wanted := ceil(count * percent / 100)):
                yield f"{percent}% of {count} {component} workers: {moved.get(component)} move instead of {wanted}"


def moved_workers(percent: int) -> dict[str, int]:
    """Component -> number of its workers that get the new version."""
    sets = [each for each in documents(render({**VALUES, "rollout": {"percent": percent}})) if is_set(each)]
    return {
        each["metadata"]["labels"]["app.kubernetes.io/component"]: each["spec"]["replicas"]
        - each["spec"]["updateStrategy"]["rollingUpdate"]["partition"]
        for each in sets
    }


def is_set(document: dict[str, Any]) -> bool:
    return bool(document["kind"] == "StatefulSet")
