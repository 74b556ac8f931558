"""The committed dashboards are what their program writes, name only what exists, and fit any Grafana."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.dashboards.build import DASHBOARDS, FOLDER, built, stale
from deploy.dashboards.grafana import TRACE_STORES, dashboard_json
from deploy.dashboards.promql import in_mesh
from gateway.observability.metric_names import TABLE
from tests.dashboards.board import read_boards
from tests.unit.deploy.promql_names import labels_of, metrics_in, unknown_labels, unknown_metrics

FILES = sorted(FOLDER.glob("*.json"))


def test_the_committed_dashboards_are_what_the_program_writes() -> None:
    assert not stale(), "python -m deploy.dashboards.build"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_metric_and_label_of_a_dashboard_exists(path: Path) -> None:
    for expression in expressions(json.loads(path.read_text())):
        assert metrics_in(expression)
        assert not unknown_metrics(expression), expression
        assert not unknown_labels(expression), expression


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_data_sources_are_variables(path: Path) -> None:
    raw = json.loads(path.read_text())
    offered = {one["name"]: one["query"] for one in raw["templating"]["list"] if one["type"] == "datasource"}
    used = {(one["type"], one["uid"]) for one in data_sources(raw)}
    assert used <= {(kind, f"${{{name}}}") for name, kind in offered.items()}
    assert {uid for _, uid in used} == {f"${{{name}}}" for name in offered}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_panel_has_a_title_a_description_and_a_place_of_its_own(path: Path) -> None:
    panels = json.loads(path.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = set[tuple[int, int]]()
    for panel in panels:
        assert panel["title"]
        assert panel["type"] == "row" or panel["description"].endswith(".")
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24 and not cells & taken
        taken |= cells


def test_titles_are_unique_within_a_dashboard_and_the_first_panel_shows_the_paths() -> None:
    for board in read_boards():
        titles = [panel.title for panel in board.panels]
        assert len(set(titles)) == len(titles)
    (overview,) = (board for board in read_boards() if board.name == "mesh-overview")
    first = next(panel for panel in overview.panels if panel.queries)
    assert (first.title, first.stacked) == ("Share of requests by path", "percent")


def test_dashboards_link_to_each_other_by_their_common_tag() -> None:
    for raw in map(dashboard_json, DASHBOARDS):
        assert raw["tags"] == raw["links"][0]["tags"] == ["baton"] and raw["uid"].startswith("baton-")


def test_the_same_dashboards_can_be_written_for_another_trace_store(tmp_path: Path) -> None:
    texts = {store: built(tmp_path, store) for store in TRACE_STORES}
    for store, files in texts.items():
        kinds = {one["type"] for text in files.values() for one in data_sources(json.loads(text))}
        assert kinds == {"prometheus", store}


@pytest.mark.parametrize(
    ("expression", "narrowed"),
    [
        ("sum(baton_pages)", 'sum(baton_pages{job=~"$job"})'),
        ('rate(baton_pages{state="free"}[5m])', 'rate(baton_pages{job=~"$job", state="free"}[5m])'),
        ("baton:path:share5m / vllm:x_total", 'baton:path:share5m{job=~"$job"} / vllm:x_total{job=~"$job"}'),
    ],
)
def test_every_metric_is_narrowed_to_the_chosen_mesh(expression: str, narrowed: str) -> None:
    assert in_mesh(expression) == narrowed


@pytest.mark.parametrize(
    ("expression", "metrics", "labels"),
    [
        ("sum by (path) (rate(baton_requests_totl[5m]))", {"baton_requests_totl"}, set[str]()),
        ("sum by (pathh) (rate(baton_requests_total[5m]))", set[str](), {"pathh"}),
        ('baton_pages{stat="free"}', set[str](), {"stat"}),
        ("baton_step_seconds_sum + baton_step_seconds_bucket", set[str](), set[str]()),
        ("baton_step_seconds", {"baton_step_seconds"}, set[str]()),
        ("baton:nothing:recorded", {"baton:nothing:recorded"}, set[str]()),
    ],
)
def test_a_misspelt_metric_or_label_is_found(expression: str, metrics: set[str], labels: set[str]) -> None:
    assert unknown_metrics(expression) == metrics
    assert unknown_labels(expression) == labels


def test_the_labels_of_a_metric_include_those_that_prometheus_adds() -> None:
    assert labels_of("baton_pages") == {*TABLE["baton_pages"].labels, "job", "instance", "pod"}
    assert "le" in labels_of("baton_step_seconds_bucket") and "le" not in labels_of("baton_step_seconds_sum")


def expressions(raw: Any) -> Iterator[str]:
    for panel in raw["panels"]:
        for target in panel.get("targets", []):
            if "expr" in target:
                yield target["expr"]
    for variable in raw["templating"]["list"]:
        if variable["type"] == "query":
            yield re.sub(r"label_values\((.+),\s*\w+\)", r"\1", variable["query"]["query"])


def data_sources(raw: Any) -> Iterator[dict[str, str]]:
    """Every object `datasource` at any depth."""
    if isinstance(raw, dict):
        for key, value in raw.items():
            if key == "datasource":
                yield value
            else:
                yield from data_sources(value)
    elif isinstance(raw, list):
        for value in raw:
            yield from data_sources(value)
