"""Writes the dashboards' JSON files beside this program: `python -m deploy.dashboards.build`.

With --check it writes nothing and fails when a committed file differs from what it would write. The committed files
show traces from Jaeger; `--traces tempo --out FOLDER` writes files for Tempo."""

import argparse
import json
import sys
from pathlib import Path

from deploy.dashboards.capacity import CAPACITY
from deploy.dashboards.grafana import TRACE_STORES, dashboard_json
from deploy.dashboards.kv_plane import KV_PLANE
from deploy.dashboards.mesh_overview import MESH_OVERVIEW
from deploy.dashboards.one_request import ONE_REQUEST

FOLDER = Path(__file__).parent
DASHBOARDS = (MESH_OVERVIEW, ONE_REQUEST, KV_PLANE, CAPACITY)


def built(folder: Path = FOLDER, trace_store: str = TRACE_STORES[0]) -> dict[Path, str]:
    """Each dashboard's file and the text that belongs there."""
    raw = {dashboard.name: dashboard_json(dashboard, trace_store) for dashboard in DASHBOARDS}
    return {folder / f"{name}.json": json.dumps(one, indent=2, ensure_ascii=False) + "\n" for name, one in raw.items()}


def stale() -> list[str]:
    """Names of files that are missing or differ from what this program writes, and of files that it does not write."""
    files = built()
    differ = [path.name for path, text in files.items() if not path.is_file() or path.read_text() != text]
    return differ + [path.name for path in sorted(FOLDER.glob("*.json")) if path not in files]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m deploy.dashboards.build",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file is stale")
    parser.add_argument("--traces", choices=TRACE_STORES, default=TRACE_STORES[0], help="the kind of the trace store")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the files")
    given = parser.parse_args()
    if given.check:
        for name in (names := stale()):
            print(f"deploy/dashboards/{name} is stale: python -m deploy.dashboards.build", file=sys.stderr)
        return bool(names)
    given.out.mkdir(parents=True, exist_ok=True)
    for path, text in built(given.out, given.traces).items():
        path.write_text(text)
        print(f"wrote {path}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
