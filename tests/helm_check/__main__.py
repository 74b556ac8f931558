"""`make helm-check`: lints the chart, renders it with every committed file of values, validates each document for three
versions of Kubernetes, and compares with the golden files. `--update` writes what is compared."""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from typing import Any

from tests.helm_check import agreement, copies, envoys, rollout, schemas
from tests.helm_check.chart import CHART, GOLDEN, ROOT, documents, helm, lint, render, values_files
from tests.helm_check.refused import REFUSED, is_refused


def golden(texts: dict[str, str]) -> str:
    """One text of all rendered files. Files that the chart carries along appear by name, not with their content."""
    parts = []
    for path, text in texts.items():
        if path == "templates/monitoring.yaml":
            text = without_copies(text)
        if path == "templates/token.yaml":
            text = re.sub(r"  token: \S+", "  token: (drawn)", text)
        if path.endswith(".txt"):
            text = "\n".join(f"# {line}".rstrip() for line in text.strip().splitlines())
        parts.append(f"---\n# {path}\n{text.strip().removeprefix('---').strip()}\n")
    return "\n".join(parts)


def without_copies(text: str) -> str:
    kept, inside = list[str](), False
    for line in text.splitlines():
        if line.startswith("---"):
            inside = False
        if not inside:
            kept.append(line)
        if line == "spec:" and "PrometheusRule" in "".join(kept[-20:]):
            kept.append("  # (deploy/prometheus/rules.yaml)")
            inside = True
        elif line.endswith(".json: |"):
            kept.append(f"    # (deploy/dashboards/{line.split(':')[0].strip()})")
            inside = True
    return "\n".join(kept)


def check_one(name: str, values: dict[str, Any], *, update: bool) -> Iterator[str]:
    for version in schemas.VERSIONS:
        yield from (f"lint for {version}: {what}" for what in lint(values, version))
    texts = render(values)
    found = documents(texts)
    for version in schemas.VERSIONS:
        problems = (schemas.problem(document, version) for document in found)
        yield from (f"Kubernetes {version}: {what}" for what in problems if what)
    yield from agreement.problems(found)
    yield from envoys.problems(found)
    file, text = GOLDEN / f"{name}.yaml", golden(texts)
    if update:
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    elif not file.is_file() or file.read_text() != text:
        yield f"differs from {file.relative_to(ROOT)}; look at the difference, then --update"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.helm_check", description=__doc__)
    parser.add_argument("--update", action="store_true", help="write golden files, copies and the table of values")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    if options.update:
        copies.copy_all()
        page = CHART / "README.md"
        page.write_text(copies.readme(page.read_text()))
    failures = {"files": [f"{path} is not a copy of its original" for path in copies.differing()]}
    count = 0
    for name, values in values_files().items():
        print(f"{name}: {len(schemas.VERSIONS)} versions of Kubernetes", file=sys.stderr)
        failures[name] = list(check_one(name, values, update=options.update))
        count += len(documents(render(values)))
    failures["rollout"] = list(rollout.problems())
    failures["refused"] = [f"{case} is accepted" for case in REFUSED if not is_refused(case)]
    report = {
        "ok": not any(failures.values()),
        "helm": helm().helm_sdk_version(),
        "kubernetes": list(schemas.VERSIONS),
        "values_files": len(values_files()),
        "documents": count,
        "refused_values": len(REFUSED),
        "checked_by_shape_only": sorted(schemas.custom()),
        "failures": {name: found for name, found in failures.items() if found},
    }
    for name, found in failures.items():
        for what in found:
            print(f"{name}: {what[:400]}", file=sys.stderr)
    print(json.dumps(report) if options.json else f"{count} documents, {sum(map(len, failures.values()))} problems")
    return 0 if report["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
