"""The engines that are compared, each a process in an environment of its own that computes one point at a time."""

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from bench.child import child

PROGRAMS = Path(__file__).resolve().parent / "programs"
START_SECONDS, POINT_SECONDS = 600.0, 300.0
LINE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Generation:
    """A point: prompts that are computed at once, their length, and how many tokens are made behind each."""

    rows: int
    prompt: int
    tokens: int


class EngineFailed(Exception):
    """An engine cannot compute; the message has the end of what it wrote."""


class EngineProcess:
    """One engine with one model, which is loaded when the process starts and stays."""

    def __init__(self, name: str, command: tuple[str, ...], folder: Path, environment: Mapping[str, str]) -> None:
        self.name, self.version = name, ""
        self._command, self._folder, self._environment = command, folder, environment
        self._log = folder / f"{name.replace(' ', '-').replace('.', '-')}.log"
        self._stack = AsyncExitStack()
        self._process: Process | None = None

    async def __aenter__(self) -> Self:
        log = self._stack.enter_context(self._log.open("wb"))
        env = os.environ | dict(self._environment)
        running = child(*self._command, stdin=PIPE, stdout=PIPE, stderr=log, env=env, limit=LINE_BYTES)
        self._process = await self._stack.enter_async_context(running)
        try:
            self.version = str((await self._answer(START_SECONDS))["version"])
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def seconds(self, wanted: Generation) -> float:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(wanted)).encode() + b"\n")
        return float((await self._answer(POINT_SECONDS))["seconds"])  # type: ignore[arg-type]

    async def _answer(self, seconds: float) -> dict[str, object]:
        """The next line of JSON; whatever else a library prints is passed over."""
        assert self._process is not None and self._process.stdout is not None
        try:
            async with asyncio.timeout(seconds):
                while line := await self._process.stdout.readline():
                    if line.startswith(b"{"):
                        found: dict[str, object] = json.loads(line)
                        return found
        except TimeoutError:
            raise EngineFailed(f"{self.name} took longer than {seconds:.0f} s, see {self._log}") from None
        raise EngineFailed(f"{self.name} ended: {last_lines(self._log)}")


def last_lines(log: Path) -> str:
    return " | ".join(log.read_text(errors="replace").strip().splitlines()[-3:]) or "it wrote nothing"


@dataclass(frozen=True, slots=True)
class Engines:
    """How each engine is started. `tools` holds the environments that `make peers` installs."""

    tools: Path
    threads: int

    def baton(self, model: Path, quantize: str, name: str = "Baton", *, path: str = "auto") -> EngineProcess:
        command = (sys.executable, "-m", "bench.peers.baton_points", str(model), quantize, str(self.threads), path)
        return EngineProcess(name, command, self._logs, {})

    def openvino(self, model: Path, precision: str) -> EngineProcess:
        converted = self.tools / f"{model.name}-openvino-{precision}"
        command = (
            self._python("openvino"),
            str(PROGRAMS / "openvino_points.py"),
            str(model),
            str(converted),
            precision,
        )
        return EngineProcess("OpenVINO GenAI", (*command, str(self.threads)), self._logs, {})

    def vllm(self, model: Path) -> EngineProcess:
        command = (self._python("vllm"), str(PROGRAMS / "vllm_points.py"), str(model))
        return EngineProcess("vLLM", command, self._logs, self.vllm_environment)

    def vllm_server(self, model: Path, host: str, port: str) -> tuple[str, ...]:
        module = ("-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--host", host, "--port", port)
        return (self._python("vllm"), *module, "--dtype", "bfloat16", "--max-model-len", "4096")

    @property
    def vllm_environment(self) -> dict[str, str]:
        bound = {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": f"0-{self.threads - 1}"}
        return bound | {"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}

    def llama(self, file: Path) -> EngineProcess:
        """Modules are looked for where the program lies, so a copy of it lies beside them."""
        program = self.tools / "llama" / "llama_points.mjs"
        program.write_text((PROGRAMS / "llama_points.mjs").read_text())
        return EngineProcess("llama.cpp", ("node", str(program), str(file), str(self.threads)), self._logs, {})

    def has(self, environment: str) -> bool:
        return (self.tools / environment / ("node_modules" if environment == "llama" else "bin/python")).exists()

    def _python(self, environment: str) -> str:
        return str(self.tools / environment / "bin" / "python")

    @property
    def _logs(self) -> Path:
        self.tools.mkdir(parents=True, exist_ok=True)
        return self.tools
