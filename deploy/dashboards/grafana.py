"""Turns a dashboard of ours into the JSON that Grafana loads.

Data sources are variables of each dashboard, so the files fit every Grafana: nothing names the uid of a data source.
Dashboards keep uids of their own, since they link to each other."""

from collections.abc import Iterator
from typing import Any

from deploy.dashboards.panels import COLOURS, PERCENTILE_COLOURS, Dashboard, Panel, PanelKind, PromQuery
from deploy.dashboards.promql import in_mesh

Json = dict[str, Any]

SCHEMA_VERSION = 41  # Grafana 12
COLUMNS = 24
LISTED_TRACES = 20
TRACE_STORES = ("jaeger", "tempo")  # kinds of data sources that show traces; compose/ runs the first
PROMETHEUS: Json = {"type": "prometheus", "uid": "${metrics}"}
MESHES = "label_values(baton_build_info, job)"

_TYPES = {
    PanelKind.LINES: "timeseries",
    PanelKind.STACK: "timeseries",
    PanelKind.SHARES: "timeseries",
    PanelKind.NUMBER: "stat",
    PanelKind.BARS: "bargauge",
    PanelKind.HEATMAP: "heatmap",
    PanelKind.TRACE: "traces",
    PanelKind.TRACE_LIST: "table",
    PanelKind.TEXT: "text",
}
_STACKING = {PanelKind.STACK: "normal", PanelKind.SHARES: "percent"}


def dashboard_json(dashboard: Dashboard, trace_store: str = TRACE_STORES[0]) -> Json:
    return {
        "uid": f"baton-{dashboard.name}",
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": ["baton"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,  # the cursor shows in all panels
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [_link_to_the_others()],
        "templating": {"list": list(_variables(dashboard, trace_store))},
        "panels": list(_panels(dashboard, trace_store)),
    }


def _link_to_the_others() -> Json:
    return {
        "title": "Baton",
        "type": "dashboards",
        "tags": ["baton"],
        "asDropdown": False,
        "includeVars": False,
        "keepTime": True,
        "targetBlank": False,
        "icon": "external link",
        "tooltip": "",
        "url": "",
    }


def _variables(dashboard: Dashboard, trace_store: str) -> Iterator[Json]:
    yield _source("metrics", "Metrics", "prometheus")
    yield {
        "type": "query",
        "name": "job",
        "label": "Mesh",
        "datasource": PROMETHEUS,
        "query": {"query": MESHES, "refId": "job"},
        "definition": MESHES,
        "refresh": 2,  # whenever the time range changes
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
        "hide": 0,
    }
    if dashboard.asks_for_trace:
        yield _source("traces", "Traces", trace_store)
        yield {"type": "textbox", "name": "trace_id", "label": "Trace id", "query": "", "current": {}, "hide": 0}


def _source(name: str, label: str, kind: str) -> Json:
    return {
        "type": "datasource",
        "name": name,
        "label": label,
        "query": kind,
        "current": {},
        "refresh": 1,
        "regex": "",
        "hide": 0,
    }


def _panels(dashboard: Dashboard, trace_store: str) -> Iterator[Json]:
    """Places sections under each other, and the panels of each from left to right."""
    number, y = 1, 0
    for section in dashboard.sections:
        place = {"x": 0, "y": y, "w": COLUMNS, "h": 1}
        yield {"id": number, "type": "row", "title": section.title, "collapsed": False, "gridPos": place, "panels": []}
        number, y, x, tallest = number + 1, y + 1, 0, 0
        for panel in section.panels:
            if x + panel.width > COLUMNS:
                x, y, tallest = 0, y + tallest, 0
            place = {"x": x, "y": y, "w": panel.width, "h": panel.height}
            yield _panel(panel, number, place, trace_store)
            number, x, tallest = number + 1, x + panel.width, max(tallest, panel.height)
        y += tallest


def _panel(panel: Panel, number: int, place: dict[str, int], trace_store: str) -> Json:
    raw: Json = {
        "id": number,
        "type": _TYPES[panel.kind],
        "title": panel.title,
        "description": panel.description,
        "gridPos": place,
        "options": _options(panel),
    }
    if panel.kind is PanelKind.TEXT:
        return raw
    if panel.kind in (PanelKind.TRACE, PanelKind.TRACE_LIST):
        traces = {"type": trace_store, "uid": "${traces}"}
        return raw | {"datasource": traces, "targets": [_trace_target(panel, traces)]}
    targets = [_target(each, place, panel) for place, each in enumerate(panel.queries)]
    return raw | {"datasource": PROMETHEUS, "fieldConfig": _field_config(panel), "targets": targets}


def _target(query: PromQuery, place: int, panel: Panel) -> Json:
    return {
        "refId": chr(ord("A") + place),
        "datasource": PROMETHEUS,
        "editorMode": "code",
        "expr": in_mesh(query.expression),
        "legendFormat": query.legend,
        "exemplar": query.exemplars,
        "range": True,
        "instant": False,
        "format": "heatmap" if panel.kind is PanelKind.HEATMAP else "time_series",
    }


def _trace_target(panel: Panel, traces: Json) -> Json:
    """The query is a trace id, or for a list the service whose traces are wanted."""
    (query,) = panel.queries
    target = {"refId": "A", "datasource": traces, "query": query.expression}
    if traces["type"] == "jaeger":
        listed = {"queryType": "search", "service": query.expression, "query": ""}
        return target | (listed | {"limit": LISTED_TRACES} if panel.kind is PanelKind.TRACE_LIST else {})
    if panel.kind is PanelKind.TRACE_LIST:
        target["query"] = f'{{ resource.service.name = "{query.expression}" && kind = server }}'
        target |= {"limit": LISTED_TRACES, "tableType": "traces"}
    return target | {"queryType": "traceql"}


def _field_config(panel: Panel) -> Json:
    defaults: Json = {"unit": panel.unit, "min": 0, "color": {"mode": "palette-classic"}}
    if panel.most is not None:
        defaults["max"] = panel.most
    if panel.kind in (PanelKind.LINES, PanelKind.STACK, PanelKind.SHARES):
        stacked = panel.kind is not PanelKind.LINES
        defaults["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1 if stacked else 2,
            "fillOpacity": 70 if stacked else 0,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"mode": _STACKING.get(panel.kind, "none"), "group": "A"},
            "thresholdsStyle": {"mode": "dashed" if panel.warn_at or panel.alarm_at else "off"},
        }
    if panel.warn_at is not None or panel.alarm_at is not None:
        defaults["thresholds"] = _thresholds(panel.warn_at, panel.alarm_at)
        if panel.kind in (PanelKind.NUMBER, PanelKind.BARS):
            defaults["color"] = {"mode": "thresholds"}
    return {"defaults": defaults, "overrides": list(_colours(panel))}


def _thresholds(warn: float | None, alarm: float | None) -> Json:
    if warn is not None and alarm is not None and alarm < warn:  # small values are the bad ones
        steps = [("red", None), ("yellow", alarm), ("green", warn)]
    else:
        steps = [("green", None), *((name, at) for name, at in (("yellow", warn), ("red", alarm)) if at is not None)]
    return {"mode": "absolute", "steps": [{"color": colour, "value": value} for colour, value in steps]}


def _colours(panel: Panel) -> Iterator[Json]:
    """Fixed colours of the series that this panel may show."""
    for legend in dict.fromkeys(query.legend for query in panel.queries):
        fixed = COLOURS.get(legend.strip("{}"), {}) if legend.startswith("{{") else _known_colour(legend)
        for name, colour in fixed.items():
            properties = [{"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}]
            yield {"matcher": {"id": "byName", "options": name}, "properties": properties}


def _known_colour(name: str) -> dict[str, str]:
    everything = {**PERCENTILE_COLOURS, **{value: c for values in COLOURS.values() for value, c in values.items()}}
    return {name: everything[name]} if name in everything else {}


def _options(panel: Panel) -> Json:
    match panel.kind:
        case PanelKind.TEXT:
            return {"mode": "markdown", "content": panel.text}
        case PanelKind.NUMBER:
            reduce = {"calcs": ["lastNotNull"], "fields": "", "values": False}
            return {"reduceOptions": reduce, "graphMode": "area", "colorMode": "value", "textMode": "auto"}
        case PanelKind.BARS:
            reduce = {"calcs": ["lastNotNull"], "fields": "", "values": False}
            return {"reduceOptions": reduce, "orientation": "horizontal", "displayMode": "basic", "valueMode": "color"}
        case PanelKind.HEATMAP:
            return {
                "calculate": False,
                "yAxis": {"unit": panel.unit},
                "color": {"mode": "scheme", "scheme": "Blues", "steps": 32},
                "tooltip": {"mode": "single", "yHistogram": True},
                "legend": {"show": True},
            }
        case PanelKind.TRACE | PanelKind.TRACE_LIST:
            return {}
        case PanelKind.LINES | PanelKind.STACK | PanelKind.SHARES:
            return {
                "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
                "tooltip": {"mode": "multi", "sort": "desc"},
            }
