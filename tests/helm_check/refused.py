"""Values that the chart must refuse, each with a word of the message: the negative controls of schema and checks."""

from typing import Any

from tests.helm_check.chart import helm, render

MODEL = {"model": {"path": "/models/a", "claimName": "a"}}
KEYS = {"keys": {"secretName": "api-keys"}}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a misspelt value": ({"prefil": {"replicas": 3}}, "prefil"),
    "a misspelt value of a group": ({"decode": {"replica": 3}}, "replica"),
    "CPU as an engine": ({"autoscaling": {"engine": "cpu"}}, "engine"),
    "a grace period shorter than the drain": ({"workerGraceSeconds": 20}, "workerGraceSeconds"),
    "a drain longer than the grace period": ({"config": {"worker": {"drain_seconds": 60}}}, "set at least 70"),
    "a drain of one tier longer than the grace period": (
        {"config": {"worker": {"drain_seconds": 5}, "decode": {"drain_seconds": 35.5}}},
        "set at least 46",
    ),
    "root": ({"user": 0}, "user"),
    "a model that is mounted nowhere": ({"model": {"path": "/models/a"}}, "model.claimName"),
    "two models": ({"model": {"claimName": "a", "image": "b"}}, "set one"),
    "an adapter that is mounted nowhere": ({"adapters": {"folders": {"sql": "/adapters/sql"}}}, "adapters.claimName"),
    "an adapter of a model that is mounted nowhere": (
        {**MODEL, "models": {"small": {"path": "/models/b", "adapters": {"sql": "/adapters/sql"}}}},
        "models.small.adapters.sql",
    ),
    "an adapter with a comma in its name": ({"adapters": {"folders": {"a,b": "/adapters/a"}, "image": "a"}}, "a,b"),
    "two volumes of adapters": ({"adapters": {"claimName": "a", "image": "b"}}, "set one"),
    "adapters on GPUs": (
        {
            "adapters": {"folders": {"sql": "/adapters/sql"}, "claimName": "a"},
            "decode": {"gpu": {"count": 1}},
            "prefill": {"gpu": {"count": 1}},
        },
        "GPUs compute no adapters",
    ),
    "GPUs in one tier": ({"decode": {"gpu": {"count": 1}}}, "both compute on GPUs"),
    "NCCL with TLS": (
        {"security": {"mode": "tls"}, "decode": {"gpu": {"count": 1}}, "prefill": {"gpu": {"count": 1}}},
        "NCCL encrypts nothing",
    ),
    "sidecars without a certificate for clients": ({"security": {"mode": "sidecar"}}, "edge.tlsSecret"),
    "a further model beside the built-in one": ({"models": {"small": {"path": "/models/b"}}}, "model.path"),
    "two models with one folder": (
        {"model": {"path": "/models/a", "claimName": "a"}, "models": {"small": {"path": "/models/a"}}},
        "servedName",
    ),
    "a model named like a component": ({**MODEL, "models": {"a-decode": {"path": "/models/b"}}}, "a-decode"),
    "a misspelt value of a model": (
        {**MODEL, "models": {"small": {"path": "/models/b", "decode": {"replica": 3}}}},
        "replica",
    ),
    "GPUs in one tier of a model": (
        {**MODEL, "models": {"small": {"path": "/models/b", "decode": {"gpu": {"count": 1}}}}},
        "small-prefill and small-decode",
    ),
    "keys without one for Prometheus": ({**KEYS, "monitoring": {"serviceMonitor": {"enabled": True}}}, "keySecret"),
    "keys without an open path for probes": (
        {**KEYS, "config": {"gateway": {"keys_open_paths": ["/health"]}}},
        "without /version",
    ),
    "keys before a picker that has none": ({**KEYS, "inferencePool": {"enabled": True}}, "picker"),
    "an unknown section of settings": ({"config": {"prefil": {"threads": 1}}}, "is no section"),
}


def is_refused(case: str) -> bool:
    values, word = REFUSED[case]
    try:
        render(values)
    except helm().HelmError as error:
        return word in str(error)
    return False
