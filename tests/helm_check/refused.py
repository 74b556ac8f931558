"""Values that the chart must refuse, each with a word of the message: the negative controls of schema and checks."""

from typing import Any

from tests.helm_check.chart import helm, render

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a misspelt value": ({"prefil": {"replicas": 3}}, "prefil"),
    "a misspelt value of a group": ({"decode": {"replica": 3}}, "replica"),
    "CPU as an engine": ({"autoscaling": {"engine": "cpu"}}, "engine"),
    "a grace period shorter than the drain": ({"workerGraceSeconds": 20}, "workerGraceSeconds"),
    "root": ({"user": 0}, "user"),
    "a model that is mounted nowhere": ({"model": {"path": "/models/a"}}, "model.claimName"),
    "two models": ({"model": {"claimName": "a", "image": "b"}}, "set one"),
    "GPUs in one tier": ({"decode": {"gpu": {"count": 1}}}, "both compute on GPUs"),
    "NCCL with TLS": (
        {"security": {"mode": "tls"}, "decode": {"gpu": {"count": 1}}, "prefill": {"gpu": {"count": 1}}},
        "NCCL encrypts nothing",
    ),
    "sidecars without a certificate for clients": ({"security": {"mode": "sidecar"}}, "edge.tlsSecret"),
    "an unknown section of settings": ({"config": {"prefil": {"threads": 1}}}, "is no section"),
}


def is_refused(case: str) -> bool:
    values, word = REFUSED[case]
    try:
        render(values)
    except helm().HelmError as error:
        return word in str(error)
    return False
