"""The chart, rendered by Helm's own Go code: the package helm-python-sdk carries Helm 4 as a library.

Nothing else in this repository renders templates, and nothing stands in for Helm: without the package `make helm-check`
installs it, and this file says so when it is missing."""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy/chart"
VALUES = CHART / "tests/values"
GOLDEN = CHART / "tests/golden"
RELEASE, NAMESPACE = "baton", "llm"

Document = dict[str, Any]


def helm() -> Any:
    try:
        return importlib.import_module("helm_python")
    except ImportError:
        raise SystemExit("helm_python is missing: run `make helm-check`, or pip install helm-python-sdk") from None


def render(values: Mapping[str, Any], *, name: str = RELEASE) -> dict[str, str]:
    """File of the chart -> its rendered text; files that render to nothing are left out. Raises HelmError."""
    with helm().Chart.load(CHART) as chart:
        texts: dict[str, str] = chart.render(dict(values), name=name, namespace=NAMESPACE)
    return {path.partition("/")[2]: text for path, text in sorted(texts.items()) if text.strip()}


def lint(values: Mapping[str, Any], kubernetes: str) -> list[str]:
    """Warnings and errors of `helm lint --strict`."""
    report = helm().lint(CHART, dict(values), strict=True, namespace=NAMESPACE, kube_version=f"v{kubernetes}.0")
    found = [f"{each['path']}: {each['error']}" for each in report["messages"] if each["severity"] >= 2]
    return found + list(report["errors"])


def documents(texts: Mapping[str, str]) -> list[Document]:
    return [
        document
        for path, text in texts.items()
        if path.endswith(".yaml")
        for document in yaml.safe_load_all(text)
        if document
    ]


def values_files() -> dict[str, dict[str, Any]]:
    """Name -> values of every committed file of values."""
    return {file.stem: yaml.safe_load(file.read_text()) or {} for file in sorted(VALUES.glob("*.yaml"))}
