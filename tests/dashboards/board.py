"""Dashboards as Grafana will read them: the panels of a JSON file, with each query's variables filled in.

The check and its pictures read the committed files, not the program that wrote them, so they see what users load."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "deploy/dashboards"
PROMETHEUS = "prometheus"
WITHOUT_QUERY = ("row", "text")


@dataclass(frozen=True, slots=True)
class BoardQuery:
    expression: str
    legend: str  # Grafana's template: {{label}}
    source: str  # kind of the data source
    instant: bool
    exemplars: bool


@dataclass(frozen=True, slots=True)
class BoardPanel:
    title: str
    description: str
    kind: str  # Grafana's panel type
    unit: str
    x: int
    y: int
    width: int  # columns, out of 24
    height: int
    stacked: str  # "", "normal" or "percent"
    most: float | None  # upper end of the axis, where it is fixed
    text: str  # content of a text panel
    limits: tuple[tuple[float, str], ...]  # from this value on, this colour
    by_limits: bool  # numbers take the colour of the limit that they have reached
    colours: Mapping[str, str]  # series name -> colour, where the dashboard fixes it
    queries: tuple[BoardQuery, ...]


@dataclass(frozen=True, slots=True)
class Board:
    name: str  # name of the file, without its ending
    title: str
    panels: tuple[BoardPanel, ...]
    variables: tuple[str, ...]  # queries that fill the choices of the dashboard's variables


def read_boards(folder: Path = FOLDER) -> list[Board]:
    found = sorted(folder.glob("*.json"))
    if not found:
        raise FileNotFoundError(f"{folder}: no dashboards; write them with `python -m deploy.dashboards.build`")
    return [read_board(path.stem, json.loads(path.read_text())) for path in found]


def read_board(name: str, raw: Mapping[str, Any]) -> Board:
    variables = raw.get("templating", {}).get("list", [])
    return Board(
        name,
        raw["title"],
        tuple(_panel(each) for each in raw["panels"]),
        tuple(each["query"]["query"] for each in variables if each["type"] == "query"),
    )


def filled(expression: str, values: Mapping[str, str]) -> str:
    """The expression with $name and ${name} replaced; KeyError names a variable that has no value."""

    def value(match: re.Match[str]) -> str:
        return values[match[1] or match[2]]

    return re.sub(r"\$(?:\{(\w+)(?::\w+)?\}|(\w+))", value, expression)


def legend(template: str, labels: Mapping[str, str]) -> str:
    """The name of a series as Grafana writes it."""
    if not template:
        return ", ".join(f"{k}={v}" for k, v in sorted(labels.items()) if k != "__name__") or "value"
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda match: labels.get(match[1], ""), template)


def _panel(raw: Mapping[str, Any]) -> BoardPanel:
    place, field = raw["gridPos"], raw.get("fieldConfig", {})
    defaults = field.get("defaults", {})
    return BoardPanel(
        title=raw.get("title", ""),
        description=raw.get("description", ""),
        kind=raw["type"],
        unit=defaults.get("unit", "short"),
        x=place["x"],
        y=place["y"],
        width=place["w"],
        height=place["h"],
        stacked=defaults.get("custom", {}).get("stacking", {}).get("mode", "none").replace("none", ""),
        most=defaults.get("max"),
        text=raw.get("options", {}).get("content", ""),
        limits=tuple(_limits(defaults.get("thresholds", {}).get("steps", []))),
        by_limits=defaults.get("color", {}).get("mode") == "thresholds",
        colours=dict(_colours(field.get("overrides", []))),
        queries=tuple(_query(each) for each in raw.get("targets", [])),
    )


def _limits(steps: list[Mapping[str, Any]]) -> Iterator[tuple[float, str]]:
    for step in steps:
        yield (float("-inf") if step["value"] is None else float(step["value"])), step["color"]


def _colours(overrides: list[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for each in overrides:
        for change in each["properties"]:
            if each["matcher"]["id"] == "byName" and change["id"] == "color":
                yield each["matcher"]["options"], change["value"]["fixedColor"]


def _query(raw: Mapping[str, Any]) -> BoardQuery:
    source = raw["datasource"]["type"]
    return BoardQuery(
        expression=raw["expr"] if source == PROMETHEUS else raw["query"],
        legend=raw.get("legendFormat", ""),
        source=source,
        instant=bool(raw.get("instant")),
        exemplars=bool(raw.get("exemplar")),
    )
