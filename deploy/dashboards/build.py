"""Writes the dashboards' JSON files beside this program: `python -m deploy.dashboards.build`.

With --check it writes nothing and fails when a committed file differs from what it would write."""

import argparse
import json
import sys
from pathlib import Path

from deploy.dashboards.capacity import CAPACITY
from deploy.dashboards.grafana import dashboard_json
from deploy.dashboards.kv_plane import KV_PLANE
from deploy.dashboards.mesh_overview import MESH_OVERVIEW
from deploy.dashboards.one_request import ONE_REQUEST

FOLDER = Path(__file__).parent
DASHBOARDS = (MESH_OVERVIEW, ONE_REQUEST, KV_PLANE, CAPACITY)


def built() -> dict[Path, str]:
    """Each dashboard's file and the text that belongs there."""
    return {
        FOLDER / f"{dashboard.name}.json": json.dumps(dashboard_json(dashboard), indent=2, ensure_ascii=False) + "\n"
        for dashboard in DASHBOARDS
    }


def stale() -> list[str]:
    """Names of files that are missing or differ from what this program writes, and of files that it does not write."""
    files = built()
    differ = [path.name for path, text in files.items() if not path.is_file() or path.read_text() != text]
    return differ + [path.name for path in sorted(FOLDER.glob("*.json")) if path not in files]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m deploy.dashboards.build", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file is stale")
    if parser.parse_args().check:
        for name in (names := stale()):
            print(f"deploy/dashboards/{name} is stale: python -m deploy.dashboards.build", file=sys.stderr)
        return bool(names)
    for path, text in built().items():
        path.write_text(text)
        print(f"wrote deploy/dashboards/{path.name}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
