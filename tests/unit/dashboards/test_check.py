"""The dashboards' check reports what a user would see: empty panels, refused queries, rules that do not work."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.dashboards.board import Board, filled, legend, read_board, read_boards
from tests.dashboards.check import QueryWindow, check_board, check_recorded, check_rules
from tests.dashboards.run import with_a_misspelt_metric
from tests.dashboards.server import QueryFailed

WINDOW = QueryWindow(0, 10, {"job": ".*", "__rate_interval": "10s", "__range": "10s"})
TRACES = [{"trace_id": "1", "spans": [{"name": "chat"}]}]


class ScriptedPrometheus:
    """Knows some metrics and answers every query that names only those."""

    def __init__(self, values: Mapping[str, float], rules: Sequence[Mapping[str, Any]] = ()) -> None:
        self._values, self._rules = values, rules

    async def course(self, expression: str, begin: float, end: float) -> list[Mapping[str, Any]]:
        if "(" in expression and ")" not in expression:
            raise QueryFailed("parse error: unclosed left parenthesis")
        value = next((value for name, value in self._values.items() if name in expression), None)
        return [] if value is None else [{"metric": {"path": "remote"}, "values": [[begin, str(value)]]}]

    async def exemplars(self, expression: str, begin: float, end: float) -> list[Mapping[str, Any]]:
        return []

    async def choices(self, variable: str) -> Sequence[str]:
        return ["baton"]

    async def rule_groups(self) -> list[Mapping[str, Any]]:
        return [{"rules": self._rules}]


def board(expression: str, **more: Any) -> Board:
    source = {"type": "prometheus", "uid": "${metrics}"}
    target = {"datasource": source, "expr": expression, "legendFormat": "{{path}}", **more}
    place = {"x": 0, "y": 0, "w": 8, "h": 8}
    panel = {"type": "timeseries", "title": "Requests", "gridPos": place, "targets": [target]}
    return read_board("board", {"title": "Board", "panels": [panel]})


async def problems(one: Board, **values: float) -> list[str]:
    return list((await check_board(one, ScriptedPrometheus(values), WINDOW, TRACES)).problems)


async def test_a_panel_with_data_is_no_problem() -> None:
    assert await problems(board("rate(baton_requests_total[$__rate_interval])"), baton_requests_total=1) == []


async def test_a_panel_with_a_misspelt_metric_is_reported() -> None:
    sound = board("rate(baton_requests_total[10s])")
    assert await problems(with_a_misspelt_metric(sound), baton_requests_total=1) == [
        "board: misspelt: no data: rate(batom_requests_total[10s])"
    ]


async def test_a_panel_whose_values_are_all_nan_is_empty() -> None:
    assert await problems(board("baton_requests_total"), baton_requests_total=float("nan")) == [
        "board: Requests: no data: baton_requests_total"
    ]


@pytest.mark.parametrize(
    ("expression", "problem"), [("sum(baton_x", "parse error"), ("baton_x{worker=~'$worker'}", "worker")]
)
async def test_a_query_that_fails_is_reported(expression: str, problem: str) -> None:
    (found,) = await problems(board(expression), baton_x=1)
    assert problem in found


async def test_a_panel_that_promises_exemplars_needs_some() -> None:
    (found,) = await problems(board("baton_x", exemplar=True), baton_x=1)
    assert "no exemplars" in found


async def test_rules_that_fail_and_rules_that_record_nothing_are_reported() -> None:
    rules = [
        {"name": "sound", "type": "recording", "health": "ok"},
        {"name": "broken", "type": "recording", "health": "err", "lastError": "many-to-many matching"},
        {"name": "Alert", "type": "alerting", "health": "ok", "state": "firing"},
    ]
    source = ScriptedPrometheus({"sound": 1}, rules)
    assert await check_rules(source) == (3, ["rule broken: many-to-many matching"], ["Alert firing"])
    assert await check_recorded(["sound", "broken"], source, WINDOW) == ["rule broken: recorded nothing"]
    assert (await check_rules(ScriptedPrometheus({})))[1] == ["Prometheus has loaded no rules"]


def test_the_variables_of_every_committed_query_have_a_value() -> None:
    for one in read_boards():
        for panel in one.panels:
            for query in panel.queries:
                if query.source == "prometheus":
                    assert "$" not in filled(query.expression, WINDOW.variables).replace('"$', "")


def test_a_series_is_named_as_grafana_names_it() -> None:
    labels = {"__name__": "x", "tier": "decode", "worker": "decode-1"}
    assert legend("{{worker}} of {{ tier }}", labels) == "decode-1 of decode"
    assert legend("", labels) == "tier=decode, worker=decode-1"
