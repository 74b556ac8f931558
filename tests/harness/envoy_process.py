"""One real Envoy of a test: started from a configuration, asked over its admin port, and gone when the test ends."""

import asyncio
import json
import shutil
import sys
from asyncio.subprocess import STDOUT, Process
from pathlib import Path
from typing import Any

from cli.connecting.http_client import HttpClient, RequestFailed
from cli.connecting.http_url import HttpUrl
from cli.local_mesh.ports import free_address
from mesh.config.config_checks import split_address

READY_SECONDS = 30.0
ANSWER_SECONDS = 10.0
# Becomes the command after asking the kernel to kill it when the test ends (PR_SET_PDEATHSIG). In this process, between
# fork and exec, the same call would meet gRPC's threads.
_LAUNCHER = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"


class EnvoyProcess:
    """`config` is the bootstrap as data; Envoy reads it as JSON, which is YAML."""

    def __init__(self, name: str, config: dict[str, Any], admin: str, folder: Path) -> None:
        self.name, self.config, self.admin = name, config, admin
        self.file = folder / f"{name}.envoy.json"
        self.file.write_text(json.dumps(config, indent=1))
        self.log = folder / f"{name}.envoy.log"
        self._http = HttpClient(HttpUrl(False, *split_address(admin), ""), {}, keeps=False)
        self._process: Process | None = None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Return when the Envoy serves."""
        options = ("--concurrency", "1", "--disable-hot-restart", "--log-level", "warning")
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-S", "-c", _LAUNCHER),
                *(binary(), "-c", str(self.file), *options, "--file-flush-interval-msec", "100"),
                stdout=log,
                stderr=STDOUT,
            )
        try:
            async with asyncio.timeout(READY_SECONDS):
                while not await self._is_ready():
                    if self._process.returncode is not None:
                        raise RuntimeError(f"Envoy {self.name} ended:\n" + "\n".join(self.lines()))
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise RuntimeError(f"Envoy {self.name} is not ready:\n" + "\n".join(self.lines())) from None

    async def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    def send_signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def stat(self, name: str) -> int:
        """One counter or gauge; 0 while Envoy has not made it."""
        return (await self.stats(name)).get(name, 0)

    async def stats(self, part: str = "") -> dict[str, int]:
        """All counters and gauges whose names contain this text."""
        _, found = await self._http.fetch("GET", "/stats?format=json", seconds=ANSWER_SECONDS)
        return {each["name"]: each["value"] for each in found["stats"] if "name" in each and part in each["name"]}

    def lines(self) -> list[str]:
        return self.log.read_text(errors="replace").splitlines() if self.log.is_file() else []

    async def _is_ready(self) -> bool:
        try:
            return (await self._http.fetch("GET", "/ready", seconds=ANSWER_SECONDS))[0] == 200
        except RequestFailed:
            return False


def binary() -> str:
    """The envoy command of this environment; the `dev` extra installs it."""
    found = shutil.which("envoy", path=str(Path(sys.executable).parent)) or shutil.which("envoy")
    if found is None:
        raise RuntimeError("there is no envoy command; `make test` installs it with the dev extra")
    return found


def free_ports(count: int) -> list[int]:
    """Ports of loopback on which no process listens, each another one."""
    return [split_address(free_address())[1] for _ in range(count)]
