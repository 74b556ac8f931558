"""Runs one client's script against a running mesh and judges it by its exit status.

A script learns the mesh from its environment variables: those that the clients themselves read, and MESH_URL,
MESH_GRPC, MESH_MODEL (the model's name), MESH_TOKENIZER (its folder) and MESH_OUT (an empty folder for files)."""

import asyncio
import os
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from engine.builtin import MODEL
from tests.clients.environments import InstallFailed, cleared
from tests.clients.table import RealClient

MODEL_NAME = "baton-tiny"
# No client may report to its maker or look for models elsewhere while it runs here.
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "ANONYMIZED_TELEMETRY": "false",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "TOKENIZERS_PARALLELISM": "false",
    "NO_COLOR": "1",
}


@dataclass(frozen=True, slots=True)
class TriedClient:
    """How it went with one client."""

    name: str
    version: str  # the first pin
    tries: str
    seconds: float
    problem: str  # empty: none

    @property
    def line(self) -> str:
        """One line for people."""
        word = "FAILED" if self.problem else "ok"
        return f"{word:<7} {self.name:<14} {self.version:<28} {self.seconds:5.1f} s  {self.tries}"


async def try_client(
    client: RealClient, command: list[str] | InstallFailed, *, http: str, grpc: str, out: Path
) -> TriedClient:
    """`command` as `command_of` gives it, or why there is none. `out`: a folder that only this client gets."""
    began = time.monotonic()
    if isinstance(command, InstallFailed):
        problem = str(command)
    else:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        problem = await _problem(command, environment(http=http, grpc=grpc, out=out), client.seconds)
    seconds = round(time.monotonic() - began, 1)
    return TriedClient(client.name, version_of(client), client.tries, seconds, problem)


def environment(*, http: str, grpc: str, out: Path) -> dict[str, str]:
    url = f"http://{http}"
    return cleared(
        QUIET
        | {
            "OPENAI_BASE_URL": f"{url}/v1",
            "OPENAI_API_KEY": "none",
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": "none",
            "HF_HOME": str(out / "cache"),
            "MESH_URL": url,
            "MESH_GRPC": grpc,
            "MESH_MODEL": MODEL_NAME,
            "MESH_TOKENIZER": str(MODEL),
            "MESH_OUT": str(out),
        }
    )


def version_of(client: RealClient) -> str:
    """The client's own pin, for people."""
    if client.node:
        return "node"
    first = next(line for line in client.requirements.read_text().splitlines() if line and not line.startswith("#"))
    return first.replace("==", " ")


async def _problem(command: list[str], variables: dict[str, str], seconds: float) -> str:
    process = await asyncio.create_subprocess_exec(
        *command,
        env=variables,
        cwd=variables["MESH_OUT"],
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), seconds)
    except TimeoutError:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        return f"not done after {seconds:.0f} s"
    text = output.decode(errors="replace").strip()
    (Path(variables["MESH_OUT"]) / "output.txt").write_text(text)
    return "" if process.returncode == 0 else text or f"exit status {process.returncode}"
