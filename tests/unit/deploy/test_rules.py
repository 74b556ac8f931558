"""Alert and recording rules name only metrics that exist; every alert says what to do, leads to a heading of the manual
and has a test of promtool in which it fires. `make dashboards-check` runs those tests."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.observability.metric_names import TABLE
from tests.unit.deploy.promql_names import RULES, rules, unknown_labels, unknown_metrics
from tests.unit.test_references import HEADING, slug

ROOT = Path(__file__).resolve().parents[3]
ALERTS = [rule for rule in rules() if "alert" in rule]


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.get("alert") or rule["record"])
def test_every_metric_and_label_of_a_rule_exists(rule: dict[str, Any]) -> None:
    assert not unknown_metrics(rule["expr"])
    assert not unknown_labels(rule["expr"])


@pytest.mark.parametrize("alert", ALERTS, ids=lambda rule: rule["alert"])
def test_every_alert_says_how_bad_it_is_what_it_means_and_what_to_do(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in ("critical", "warning", "info")
    texts = alert["annotations"]
    assert set(texts) == {"summary", "description", "runbook"}
    assert "{{" not in texts["summary"] and not texts["summary"].endswith(".")
    assert texts["description"].endswith(".")
    assert "{{ $labels." in texts["description"] or "absent(" in alert["expr"]


@pytest.mark.parametrize("alert", ALERTS, ids=lambda rule: rule["alert"])
def test_every_runbook_is_a_heading_of_the_manual(alert: dict[str, Any]) -> None:
    page, _, anchor = alert["annotations"]["runbook"].partition("#")
    assert anchor in {slug(heading) for heading in HEADING.findall((ROOT / page).read_text())}


def test_every_alert_fires_in_a_test_of_promtool() -> None:
    tests = (RULES.parent / "rules_test.yaml").read_text()
    fired = set(re.findall(r'alertname="(\w+)"', tests))
    assert fired == {alert["alert"] for alert in ALERTS}


def test_the_limits_of_the_objectives_are_bounds_of_buckets() -> None:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    (objectives,) = (group for group in groups if group["name"] == "baton-objectives")
    found = [
        (metric, bound)
        for rule in objectives["rules"]
        for metric, bounds in re.findall(r'(\w+)_bucket\{le=~?"([\d.|]+)"', rule["expr"])
        for bound in bounds.split("|")
    ]
    assert len(found) > 4
    for metric, bound in found:
        assert float(bound) in TABLE[metric].buckets, f"{metric} has no bucket up to {bound}"


def test_compose_provisions_the_data_sources_that_the_dashboards_ask_for() -> None:
    folder = ROOT / "deploy/grafana"
    sources = yaml.safe_load((folder / "datasources/baton.yaml").read_text())["datasources"]
    assert {source["type"] for source in sources} == {"prometheus", "jaeger"}
    links = sources[0]["jsonData"]["exemplarTraceIdDestinations"]
    assert [link["datasourceUid"] for link in links] == [sources[1]["uid"]]
    (provider,) = yaml.safe_load((folder / "dashboards/baton.yaml").read_text())["providers"]
    assert provider["options"]["path"] == "/var/lib/dashboards"
