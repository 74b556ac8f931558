"""`python -m tests.dashboards`: every query of every dashboard and every rule, against a real Prometheus that scraped a
real mesh under load. Draws the dashboards from what the queries returned.

It needs prometheus and promtool: those in PATH, or Debian's package, which it downloads."""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from bench.command import say
from cli.local_mesh.ports import free_address
from mesh.config.settings import read_settings
from tests.dashboards.drawing import draw
from tests.dashboards.run import RULES, DashboardRun, Show, watched_run
from tests.dashboards.tools import PrometheusTools, ToolMissing, prometheus_tools

PICTURES = Path(__file__).resolve().parents[2] / "build/dashboards"
MOST_PICTURE_BYTES = 150_000
SETTINGS = {
    "mesh.prefill_workers": "2",
    "mesh.decode_workers": "2",
    "worker.page_tokens": "16",
    "worker.chunk_tokens": "64",
    "worker.threads": "1",
    "worker.pool_pages": "512",
    "decode.max_batch": "16",
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.dashboards", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rules", action="store_true", help="only check and test the rules with promtool")
    parser.add_argument("--seconds", type=float, default=75.0, help="how long the load runs")
    parser.add_argument("--seed", type=int, default=0, help="seed of all random choices of the load")
    parser.add_argument(
        "--pictures",
        type=Path,
        default=PICTURES,
        help="folder of the drawn dashboards; docs/pictures has the committed",
    )
    parser.add_argument("--skip-rules", action="store_true", help="leave promtool out, which takes a while")
    parser.add_argument("--json", action="store_true", help="end with one JSON object on stdout")
    return parser.parse_args()


def main() -> int:
    given = arguments()
    try:
        tools = prometheus_tools()
    except ToolMissing as missing:
        say(str(missing))
        return 2
    problems = [] if given.skip_rules else promtool_problems(tools)
    report: dict[str, Any] = {}
    if not given.rules:
        run = run_mesh(tools, given.seconds, given.seed)
        problems += run.problems + write_pictures(run, given.pictures)
        report = {"panels": run.panels, "empty": run.empty, "rules": run.rules, "alerts": run.alerts}
        report |= {"control": run.control, "requests": run.requests}
        say(f"{run.panels} panels, {run.empty} of them empty, {run.rules} rules; pictures in {given.pictures}")
        if run.problems:
            say("\n".join(run.lines[-40:]))
    for problem in problems:
        say(problem)
    say("the dashboards and rules are sound" if not problems else f"{len(problems)} problems")
    if given.json:
        print(json.dumps(report | {"problems": problems}))
    return bool(problems)


def promtool_problems(tools: PrometheusTools) -> list[str]:
    """Problems that promtool finds in the configuration, the rules and the rules' tests."""
    problems = list[str]()
    for command in (
        ("check", "config", "prometheus.yaml"),
        ("check", "rules", "rules.yaml"),
        ("test", "rules", "rules_test.yaml"),
    ):
        done = subprocess.run((tools.promtool, *command), cwd=RULES.parent, capture_output=True, text=True)
        if done.returncode:
            problems.append(f"promtool {' '.join(command)}: {(done.stdout + done.stderr).strip()}")
    return problems


def run_mesh(tools: PrometheusTools, seconds: float, seed: int) -> DashboardRun:
    overrides = SETTINGS | {f"gateway.{port}_address": free_address() for port in ("http", "grpc", "worker")}
    mesh = read_settings(overrides=overrides).mesh()
    with tempfile.TemporaryDirectory() as folder, progress(seconds) as show:
        run = watched_run(mesh, overrides, tools.server, Path(folder), seconds=seconds, seed=seed, show=show)
        return asyncio.run(run)


@contextmanager
def progress(seconds: float) -> Iterator[Show]:
    columns = TextColumn("{task.description:44}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("starting a mesh and Prometheus", total=seconds)
        yield lambda text, done: bar.update(task, description=text, completed=done)


def write_pictures(run: DashboardRun, folder: Path) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    problems = list[str]()
    for checked in run.boards:
        path = folder / f"dashboard-{checked.board.name}.svg"
        path.write_text(draw(checked.board, checked.answers, run.begin, run.end))
        if (size := path.stat().st_size) > MOST_PICTURE_BYTES:
            problems.append(f"{path.name}: {size} bytes; at most {MOST_PICTURE_BYTES} are wanted")
    return problems


if __name__ == "__main__":
    sys.exit(main())
