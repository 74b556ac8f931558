"""A real Prometheus for the dashboards' check: started on a free port with our rules, asked over its HTTP API."""

import asyncio
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from cli.local_mesh.ports import free_address

READY_SECONDS, ANSWER_SECONDS = 30.0, 20.0
SCRAPE_SECONDS = 1
CONFIGURATION = """\
global:
  scrape_interval: {seconds}s
  scrape_timeout: {seconds}s
  evaluation_interval: {seconds}s
rule_files: [{rules}]
scrape_configs:
  - job_name: baton
    static_configs:
      - targets: [{target}]
"""


class QueryFailed(Exception):
    """Prometheus refused a query; the message is its own."""


class PrometheusServer:
    def __init__(self, address: str) -> None:
        self.address = address

    async def instant(self, expression: str) -> list[Mapping[str, Any]]:
        return list((await self.ask("query", query=expression))["result"])

    async def course(self, expression: str, begin: float, end: float) -> list[Mapping[str, Any]]:
        """The values of the expression at every second from `begin` to `end`."""
        answer = await self.ask(
            "query_range", query=expression, start=str(begin), end=str(end), step=f"{SCRAPE_SECONDS}"
        )
        return list(answer["result"])

    async def exemplars(self, expression: str, begin: float, end: float) -> list[Mapping[str, Any]]:
        answer = await self.ask("query_exemplars", query=expression, start=str(begin), end=str(end))
        return [exemplar for series in answer for exemplar in series["exemplars"]]

    async def choices(self, variable: str) -> Sequence[str]:
        """The values that a variable `label_values(metric, label)` of a dashboard offers."""
        parts = re.fullmatch(r"label_values\((.+),\s*(\w+)\)", variable)
        if parts is None:
            raise QueryFailed(f"{variable}: only label_values(metric, label) is known")
        return list(await self.ask(f"label/{parts[2]}/values", **{"match[]": parts[1]}))

    async def rule_groups(self) -> list[Mapping[str, Any]]:
        return list((await self.ask("rules"))["groups"])

    async def ask(self, what: str, **parameters: str) -> Any:
        url = f"http://{self.address}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        return await asyncio.to_thread(_get, url)


@asynccontextmanager
async def prometheus(program: Path, target: str, rules: Path, folder: Path) -> AsyncIterator[PrometheusServer]:
    """A Prometheus that scrapes `target` every second and keeps its data in `folder`; it ends on the way out."""
    configuration = folder / "prometheus.yaml"
    configuration.write_text(CONFIGURATION.format(seconds=SCRAPE_SECONDS, rules=json.dumps(str(rules)), target=target))
    server = PrometheusServer(free_address())
    process = await asyncio.create_subprocess_exec(
        str(program),
        f"--config.file={configuration}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={server.address}",
        "--enable-feature=exemplar-storage",
        "--log.level=warn",
        stdin=DEVNULL,
        stdout=DEVNULL,
        stderr=PIPE,
    )
    lines = list[str]()
    reader = asyncio.create_task(_keep_lines(process, lines))
    try:
        await _ready(server, process, lines)
        yield server
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
        await reader


async def _ready(server: PrometheusServer, process: Process, lines: Sequence[str]) -> None:
    try:
        async with asyncio.timeout(READY_SECONDS):
            while process.returncode is None:
                try:
                    await asyncio.to_thread(_read, f"http://{server.address}/-/ready")
                    return
                except OSError:
                    await asyncio.sleep(0.1)
    except TimeoutError:
        pass
    raise RuntimeError("Prometheus did not start:\n" + "\n".join(lines))


async def _keep_lines(process: Process, lines: list[str]) -> None:
    assert process.stderr is not None
    while raw := await process.stderr.readline():
        lines.append(raw.decode(errors="replace").rstrip())


def _get(url: str) -> Any:
    try:
        answer = json.loads(_read(url))
    except urllib.error.HTTPError as error:
        answer = json.loads(error.read() or b"{}")
    if answer.get("status") != "success":
        raise QueryFailed(answer.get("error", "Prometheus gave no answer"))
    return answer["data"]


def _read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=ANSWER_SECONDS) as answer:
        body: bytes = answer.read()
        return body
