"""Asks a Prometheus that has watched a real mesh for every query of every dashboard, and for every rule.

A query that Prometheus refuses, or that returns no series, is a problem: its panel would stay empty for users."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tests.dashboards.board import PROMETHEUS, WITHOUT_QUERY, Board, BoardPanel, BoardQuery, filled, legend
from tests.dashboards.charts import Series
from tests.dashboards.drawing import Answered
from tests.dashboards.server import QueryFailed


class MetricSource(Protocol):
    """A Prometheus server, or a test's double of one."""

    async def course(self, expression: str, begin: float, end: float) -> list[Mapping[str, Any]]: ...

    async def exemplars(self, expression: str, begin: float, end: float) -> list[Mapping[str, Any]]: ...

    async def choices(self, variable: str) -> Sequence[str]: ...

    async def rule_groups(self) -> list[Mapping[str, Any]]: ...


@dataclass(frozen=True, slots=True)
class Window:
    """The time that the dashboards show, and the value of each variable of theirs."""

    begin: float
    end: float
    variables: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CheckedBoard:
    board: Board
    answers: tuple[Answered, ...]
    problems: tuple[str, ...]

    @property
    def panels(self) -> int:
        return sum(bool(answered.panel.queries) for answered in self.answers)


async def check_board(
    board: Board, source: MetricSource, window: Window, traces: Sequence[Mapping[str, Any]]
) -> CheckedBoard:
    """`traces`: the last requests, for panels that ask the trace store."""
    answers, problems = list[Answered](), list[str]()
    for variable in board.variables:
        if not await source.choices(variable):
            problems.append(f"{board.name}: the variable {variable} has no values")
    for panel in board.panels:
        answered, panel_problems = await _answer(panel, source, window, traces)
        answers.append(answered)
        problems += [f"{board.name}: {panel.title}: {problem}" for problem in panel_problems]
    return CheckedBoard(board, tuple(answers), tuple(problems))


async def _answer(
    panel: BoardPanel, source: MetricSource, window: Window, traces: Sequence[Mapping[str, Any]]
) -> tuple[Answered, list[str]]:
    if panel.kind in WITHOUT_QUERY:
        return Answered(panel), []
    if not panel.queries:
        return Answered(panel), ["has no query"]
    series, dots, problems = list[Series](), list[tuple[float, float]](), list[str]()
    for query in panel.queries:
        if query.source != PROMETHEUS:
            if not traces:
                problems.append("the gateway keeps no spans of the last requests")
            continue
        try:
            found = await _series(query, source, window)
            if query.exemplars:
                dots += await _exemplars(query, source, window)
                if not dots:
                    problems.append(f"no exemplars: {query.expression}")
        except (QueryFailed, KeyError) as error:
            problems.append(f"{error}: {query.expression}")
            continue
        if not found:
            problems.append(f"no data: {query.expression}")
        series += found
    return Answered(panel, series, dots, () if series else traces), problems


async def _series(query: BoardQuery, source: MetricSource, window: Window) -> list[Series]:
    answer = await source.course(filled(query.expression, window.variables), window.begin, window.end)
    found = list[Series]()
    for each in answer:
        points = tuple((float(t), float(v)) for t, v in each["values"] if math.isfinite(float(v)))
        if points:
            found.append(Series(legend(query.legend, each["metric"]), points, each["metric"]))
    return sorted(found, key=lambda one: one.name)


async def _exemplars(query: BoardQuery, source: MetricSource, window: Window) -> list[tuple[float, float]]:
    found = await source.exemplars(filled(query.expression, window.variables), window.begin, window.end)
    return [(float(each["timestamp"]), float(each["value"])) for each in found if each["labels"].get("trace_id")]


async def check_rules(source: MetricSource) -> tuple[int, list[str], list[str]]:
    """The number of rules, their problems, and the names of the alerts that fire or are about to."""
    number, problems, alerts = 0, list[str](), list[str]()
    for group in await source.rule_groups():
        for rule in group["rules"]:
            number += 1
            if rule["health"] != "ok":
                problems.append(f"rule {rule['name']}: {rule.get('lastError') or 'was not evaluated'}")
            if rule["type"] == "alerting" and rule["state"] != "inactive":
                alerts.append(f"{rule['name']} {rule['state']}")
    if not number:
        problems.append("Prometheus has loaded no rules")
    return number, problems, alerts


async def check_recorded(names: Sequence[str], source: MetricSource, window: Window) -> list[str]:
    """Recording rules that recorded nothing."""
    empty = [name for name in names if not await source.course(name, window.begin, window.end)]
    return [f"rule {name}: recorded nothing" for name in empty]
