"""What of the chart can be checked without Helm: values, schema, README, copied files and the times of a drain."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from mesh.config.worker_config import DecodeConfig
from mesh.network.grpc_stream import FLUSH_SECONDS
from tests.helm_check import copies
from tests.helm_check.agreement import problems
from tests.helm_check.chart import CHART, values_files
from tests.helm_check.schemas import problem

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())


def undescribed(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    for key, inner in schema.get("properties", {}).items():
        if not inner.get("description") and path != "topologySpread":
            yield f"{path}.{key}"
        yield from undescribed(inner, f"{path}.{key}")


def unmatched(schema: dict[str, Any], values: Any, path: str = "") -> Iterator[str]:
    """Values without a place in the schema, and places without a value."""
    properties = schema.get("properties")
    if not properties or not isinstance(values, dict):
        return
    for key in set(properties) ^ set(values) - {"global"}:
        if f"{path}.{key}" != ".global":
            yield f"{path}.{key}"
    for key in set(properties) & set(values):
        yield from unmatched(properties[key], values[key], f"{path}.{key}")


def test_every_value_has_a_default_and_a_description() -> None:
    assert list(undescribed(SCHEMA)) == []
    assert list(unmatched(SCHEMA, VALUES)) == []


def test_the_readme_lists_every_value_as_it_is() -> None:
    text = (CHART / "README.md").read_text()
    assert copies.readme(text) == text, "run: python -m tests.helm_check --update"


def test_rules_and_dashboards_of_the_chart_are_copies() -> None:
    assert copies.differing() == [], "run: python -m tests.helm_check --update"


def test_a_worker_has_time_to_drain_before_it_is_killed() -> None:
    least = SCHEMA["properties"]["workerGraceSeconds"]["minimum"]
    assert DecodeConfig().drain_seconds + FLUSH_SECONDS < least <= VALUES["workerGraceSeconds"]
    assert f'drain_seconds" {DecodeConfig().drain_seconds:.0f} ' in (CHART / "templates/_checks.tpl").read_text()


def test_no_component_scales_on_its_processor() -> None:
    scaling = VALUES["autoscaling"]
    queries = [each["query"] for part in ("gateway", "prefill", "decode") for each in scaling[part]["signals"].values()]
    assert queries
    assert not any("cpu" in query.lower() for query in queries)


def shared_series(query: str) -> list[str]:
    """Selectors of a query that take in what belongs to other models."""
    return [each for each in re.findall(r"\{[^}]*}", query) if "MODEL" not in each and "WORKERS" not in each]


def test_with_several_models_no_tier_scales_by_requests_of_another_model() -> None:
    signals = [each for tier in ("prefill", "decode") for each in VALUES["autoscaling"][tier]["signals"].values()]
    assert [shared for each in signals for shared in shared_series(each.get("modelQuery", each["query"]))] == []
    assert any(shared_series(each["query"]) for each in signals), "negative control: one model needs no such care"


def test_every_file_of_values_has_a_golden_file() -> None:
    assert {file.stem for file in (CHART / "tests/golden").glob("*.yaml")} == set(values_files())


# ---- the checks notice


SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "a"},
    "spec": {"selector": {"app": "a"}, "ports": [{"port": 1}]},
}


def test_a_document_that_kubernetes_would_refuse_is_found() -> None:
    assert problem(SERVICE, "1.34") == ""
    assert "porst" in problem(SERVICE | {"spec": {"porst": []}}, "1.34")
    assert "Couldn't find schema" in problem(SERVICE | {"kind": "Servise"}, "1.34")


@pytest.mark.parametrize("kind", ["gateway", "prefill"])
def test_a_service_that_selects_no_pod_and_a_wrong_setting_are_found(kind: str) -> None:
    container = {
        "name": kind,
        "env": [{"name": "BATON_NAME", "value": "a"}, {"name": f"BATON_{kind.upper()}_THREDS", "value": "1"}],
        "securityContext": {"readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False},
        "volumeMounts": [],
    }
    spec = {"serviceAccountName": "a", "containers": [container], "volumes": []}
    pod = {"metadata": {"labels": {"app": "b"}}, "spec": spec}
    settings = {"kind": "ConfigMap", "metadata": {"name": "a-settings"}, "data": {"baton.toml": ""}}
    account = {"kind": "ServiceAccount", "metadata": {"name": "a"}}
    workload = {"kind": "Deployment", "metadata": {"name": "a"}, "spec": {"template": pod}}
    found = list(problems([SERVICE, workload, settings, account]))
    assert found[0] == "Service a selects no pod: {'app': 'a'}"
    assert "unknown variable" in found[1]
