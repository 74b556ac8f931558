"""`python docs/terminal_pictures.py`: runs `baton demo` and `baton explain` and draws their output in docs/pictures."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from cli.clients.client import chat_request, sampling, stream
from cli.local_mesh.ports import free_address
from cli.local_mesh.recent import last_finished
from cli.local_mesh.running import running_mesh
from cli.local_mesh.services import services_of
from mesh.config.settings import read_settings

COLUMNS = 118
PICTURES = Path(__file__).with_name("pictures")
QUESTION = "What happens to the pages of a prompt while prefill still computes it, and who checks them?"
SETTLE_SECONDS = 20.0  # so that the workers have measured their hardware


def main() -> None:
    draw(["$ make demo", *output_of("demo")], "baton demo", PICTURES / "demo.svg")
    asyncio.run(explain())


async def explain() -> None:
    """Ask a mesh the same question twice, the second time with other words before it, and explain the last answer."""
    overrides = {
        "gateway.http_address": free_address(),
        "gateway.grpc_address": free_address(),
        "gateway.worker_address": free_address(),
        "gateway.local": "never",
    }
    mesh = read_settings(None, os.environ, overrides).mesh()
    services = services_of(mesh, file=None, overrides=overrides, otlp_endpoint="")
    async with running_mesh(mesh, services, lambda name, line: None, 120.0):
        await asyncio.sleep(SETTLE_SECONDS)
        for before in ("Tell me. ", "I would like to know. "):
            request = sampling(chat_request([("user", before + QUESTION)]), max_tokens=48, temperature=0.0, seed=None)
            async for _ in stream(mesh.gateway.grpc_address, request):
                pass
        await last_finished(mesh.gateway.http_address, 10.0)
        url = f"http://{mesh.gateway.http_address}"
        lines = await asyncio.to_thread(output_of, "explain", "--http", url)
    draw(["$ baton explain", *lines], "baton explain", PICTURES / "explain.svg")


def output_of(*arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "cli", *arguments],
        env=os.environ | {"COLUMNS": str(COLUMNS), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def draw(lines: Sequence[str], title: str, file: Path) -> None:
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere)
        for line in lines:
            bold = line.startswith(("$ ", "you ›"))
            console.print(Text(line, style="bold" if bold else "dim" if line.startswith("  ") else ""))
        drawn = console.export_svg(title=title)
    file.write_text(re.sub(r"\s*@font-face \{.*?\n    \}", "", drawn, flags=re.DOTALL))  # a picture loads nothing


if __name__ == "__main__":
    main()
