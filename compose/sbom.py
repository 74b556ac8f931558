"""Writes the software bill of materials of the interpreter that runs it: CycloneDX 1.6, as JSON.

It lists every installed distribution of Python with version, licence and requirements, and every package of Debian that
the image carries. The Dockerfile stores it as /opt/baton/sbom.cdx.json."""

import argparse
import json
import platform
import re
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

DPKG = Path("/var/lib/dpkg/status")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True, help="name of what the bill describes")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    bill = bill_of(arguments.name, sorted(distributions(), key=lambda d: normal(d.name)), dpkg_packages(DPKG))
    arguments.output.write_text(json.dumps(bill, indent=1, sort_keys=True) + "\n")


def bill_of(name: str, python: Iterable[Distribution], debian: Iterable[dict[str, str]]) -> dict[str, Any]:
    found = {normal(d.name): d for d in python}
    components = [component(d) for d in found.values()]
    components += [
        {"type": "library", "bom-ref": purl, "name": p["Package"], "version": p["Version"], "purl": purl}
        for p in debian
        for purl in [f"pkg:deb/debian/{p['Package']}@{p['Version']}?arch={p['Architecture']}"]
    ]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "container",
                "bom-ref": name,
                "name": name,
                "version": found["baton"].version if "baton" in found else "0",
                "properties": [{"name": "python", "value": platform.python_version()}],
            }
        },
        "components": components,
        "dependencies": [
            {"ref": purl(d), "dependsOn": sorted(purl(r) for r in required(d, found))} for d in found.values()
        ],
    }


def component(distribution: Distribution) -> dict[str, Any]:
    meta = distribution.metadata
    licence = meta.get("License-Expression") or meta.get("License") or ""
    entry: dict[str, Any] = {
        "type": "library",
        "bom-ref": purl(distribution),
        "name": distribution.name,
        "version": distribution.version,
        "purl": purl(distribution),
    }
    if meta.get("License-Expression"):
        entry["licenses"] = [{"expression": licence}]
    elif licence and "\n" not in licence:  # some put the whole text there
        entry["licenses"] = [{"license": {"name": licence}}]
    return entry


def required(distribution: Distribution, found: dict[str, Distribution]) -> Iterator[Distribution]:
    """The installed distributions that this one asks for, extras included."""
    names = {normal(re.split(r"[\s;<>=!~\[(]", text, maxsplit=1)[0]) for text in distribution.requires or ()}
    return (found[name] for name in sorted(names) if name in found)


def purl(distribution: Distribution) -> str:
    return f"pkg:pypi/{normal(distribution.name)}@{distribution.version}"


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def dpkg_packages(status: Path) -> list[dict[str, str]]:
    """Installed packages as dpkg records them; none where there is no dpkg."""
    if not status.exists():
        return []
    blocks = (dict(re.findall(r"^([\w-]+): (.*)$", text, re.MULTILINE)) for text in status.read_text().split("\n\n"))
    return [block for block in blocks if block.get("Status", "").endswith(" installed")]


if __name__ == "__main__":
    main()
