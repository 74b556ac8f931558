"""Files that the chart carries along although they belong to other folders, and the table of values in its README.

A chart can read files of its own folder only. So the rules and dashboards are copied into deploy/chart/files, never
edited there; `python -m tests.helm_check --update` copies them, and a test compares."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.helm_check.chart import CHART, ROOT

FILES = CHART / "files"
BEGIN, END = "<!-- values: begin -->", "<!-- values: end -->"
RULES, DASHBOARDS = ROOT / "deploy/prometheus/rules.yaml", ROOT / "deploy/dashboards"


def copied() -> dict[Path, Path]:
    """Copy -> original."""
    pairs = {FILES / "rules.yaml": RULES} if RULES.is_file() else {}
    return pairs | {FILES / "dashboards" / each.name: each for each in sorted(DASHBOARDS.glob("*.json"))}


def differing() -> list[str]:
    """Copies that are missing, differ from their original, or have none."""
    pairs = copied()
    there = {path for path in FILES.rglob("*") if path.is_file()}
    wrong = [
        copy for copy, original in pairs.items() if copy not in there or copy.read_bytes() != original.read_bytes()
    ]
    return sorted(str(path.relative_to(ROOT)) for path in (*wrong, *(there - set(pairs))))


def copy_all() -> None:
    for path in [path for path in FILES.rglob("*") if path.is_file()]:
        path.unlink()
    for copy, original in copied().items():
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(original.read_bytes())


# ---- the table of values


def rows(schema: dict[str, Any], values: Any, path: str = "") -> Iterator[tuple[str, str, str]]:
    """(path, default, description) of every value that is no group of others."""
    for key, inner in schema.get("properties", {}).items():
        where = f"{path}.{key}" if path else key
        default = values.get(key) if isinstance(values, dict) else None
        if inner.get("properties"):
            yield from rows(inner, default or {}, where)
        elif key == "signals":
            for name, signal in (default or {}).items():
                kind = "a pod" if signal["type"] == "AverageValue" else "for all"
                yield f"{where}.{name}.target", f"`{signal['target']:g}`", f"`{signal['query']}`; {kind}"
        elif where != "global":
            yield where, f"`{json.dumps(default)}`", inner["description"]


def table() -> str:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    lines = ["| value | default | meaning |", "|---|---|---|"]
    for path, default, meaning in rows(schema, values):
        lines.append(f"| `{path}` | {default} | {meaning.replace('|', chr(92) + '|')} |")
    return "\n".join(lines)


def readme(text: str) -> str:
    """The README's text with the table of now."""
    head, rest = text.split(BEGIN, 1)
    return f"{head}{BEGIN}\n{table()}\n{END}{rest.split(END, 1)[1]}"
