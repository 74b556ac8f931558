"""One run of the dashboards' check: a mesh, a Prometheus that watches it, load with faults, then every query."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import yaml

from cli.local_mesh.running import running_mesh
from cli.local_mesh.services import services_of
from mesh.config.services import MeshConfig
from tests.dashboards.board import Board, read_boards
from tests.dashboards.check import CheckedBoard, QueryWindow, check_board, check_recorded, check_rules
from tests.dashboards.load import Faults, MixedLoad
from tests.dashboards.server import PrometheusServer, prometheus
from tests.dashboards.traces import recent_traces

RULES = Path(__file__).resolve().parents[2] / "deploy/prometheus/rules.yaml"
START_SECONDS = 120.0
BURST_SECONDS = 0.3  # from the beginning of a burst to the fault in it
VARIABLES = {"__rate_interval": "10s", "__interval": "1s", "job": ".*"}

Show = Callable[[str, float], None]  # what happens now, and how many seconds of the load are over


@dataclass(slots=True)
class DashboardRun:
    begin: float = 0.0
    end: float = 0.0
    boards: list[CheckedBoard] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    alerts: list[str] = field(default_factory=list)
    rules: int = 0
    control: int = 0  # problems found in a dashboard with a misspelt metric, beyond its own
    requests: dict[str, int] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)  # log lines of the services

    @property
    def panels(self) -> int:
        return sum(checked.panels for checked in self.boards)

    @property
    def empty(self) -> int:
        return sum(
            not (one.series or one.traces) for checked in self.boards for one in checked.answers if one.panel.queries
        )


async def watched_run(
    mesh: MeshConfig, overrides: dict[str, str], program: Path, folder: Path, *, seconds: float, seed: int, show: Show
) -> DashboardRun:
    run = DashboardRun()
    services = services_of(mesh, file=None, overrides=overrides, otlp_endpoint="")
    async with (
        running_mesh(mesh, services, lambda name, line: run.lines.append(f"{name}: {line}"), START_SECONDS) as running,
        prometheus(program, mesh.gateway.http_address, RULES, folder) as server,
    ):
        load = MixedLoad(mesh.gateway.http_address, mesh.gateway.grpc_address, Random(seed))
        run.begin = time.time()
        try:
            await _load_with_faults(load, Faults(mesh, running), seconds, show)
        finally:
            await load.aclose()
        run.end = time.time()
        show("asking every query", seconds)
        await _judge(run, server, await recent_traces(mesh.gateway.http_address))
    run.requests = dict(sorted(load.sent.items()))
    run.problems += [f"request {surprise}" for surprise in load.surprises]
    return run


async def _load_with_faults(load: MixedLoad, faults: Faults, seconds: float, show: Show) -> None:
    """Load from the first second to the last; the faults at fixed parts of the time."""
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    begun = loop.time()
    running = asyncio.create_task(load.run(over))

    async def until(part: float, text: str) -> None:
        while loop.time() < begun + part * seconds:
            show(text, loop.time() - begun)
            await asyncio.sleep(0.2)

    async def during_burst(fault: Coroutine[Any, Any, None]) -> None:
        """The fault strikes while many hand-offs are on their way, so that it hits some."""
        burst = asyncio.create_task(load.burst())
        await asyncio.sleep(BURST_SECONDS)
        await fault
        await burst

    try:
        await until(0.2, "mixed load")
        await load.burst()
        await until(0.35, "mixed load after a burst")
        await during_burst(faults.kill("decode-0"))
        await until(0.5, "mixed load after a decode worker's death")
        await during_burst(faults.silence("prefill-0"))
        await until(0.7, "mixed load after a prefill worker's silence")
        await during_burst(faults.kill("prefill-1"))
        await until(1.0, "mixed load after a prefill worker's death")
    finally:
        over.set()
        await running


async def _judge(run: DashboardRun, server: PrometheusServer, traces: Sequence[Mapping[str, Any]]) -> None:
    window = QueryWindow(run.begin, run.end, VARIABLES | {"__range": f"{int(run.end - run.begin)}s"})
    run.boards = [await check_board(board, server, window, traces) for board in read_boards()]
    run.rules, rule_problems, run.alerts = await check_rules(server)
    groups = yaml.safe_load(RULES.read_text())["groups"]
    recorded = {rule["record"] for group in groups for rule in group["rules"] if "record" in rule}
    run.problems += [problem for checked in run.boards for problem in checked.problems]
    run.problems += rule_problems + await check_recorded(sorted(recorded), server, window)
    first = run.boards[0]
    misspelt = await check_board(with_a_misspelt_metric(first.board), server, window, traces)
    run.control = len(misspelt.problems) - len(first.problems)
    if run.control != 1:
        run.problems.append("control: a panel whose metric is misspelt was not reported")


def with_a_misspelt_metric(board: Board) -> Board:
    """The same dashboard with one more panel, which asks for a metric that no service exports."""
    sound = next(panel for panel in board.panels if panel.queries)
    query = replace(sound.queries[0], expression=sound.queries[0].expression.replace("baton_", "batom_"))
    return replace(board, panels=(*board.panels, replace(sound, title="misspelt", queries=(query,))))
