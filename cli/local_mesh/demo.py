"""`baton demo`: a real mesh on free ports, one question, its answer, and a picture of where the time went.

Everything is as in production: a process for each service, gRPC between them, pages over a real transport, and a
timeline from the request's trace, which the gateway keeps. At the end all processes are gone."""

import os
import shutil
from typing import Annotated, Any

import typer

from cli.clients.client import chat_request, sampling, stream
from cli.errors import MeshFailed, readable_errors
from cli.local_mesh.drawn_token import drawn_token
from cli.local_mesh.ports import dialable, free_address
from cli.local_mesh.recent import last_finished
from cli.local_mesh.running import running_mesh
from cli.local_mesh.services import services_of
from cli.local_mesh.supervisor import READY, brief
from cli.local_mesh.timeline import draw
from cli.local_mesh.up import Kv, Quantize, run_until_signal
from cli.models.hub import with_models
from cli.output import say, write
from mesh.config.services import MeshConfig
from mesh.config.settings import read_settings
from mesh.network.tls import TlsFiles, tls_files

QUESTION = "What is Baton?"
START_SECONDS = 150.0
TRACE_SECONDS = 10.0


def demo(
    question: Annotated[str, typer.Argument(help="The question.")] = QUESTION,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of the answer.")] = 128,
    model: Annotated[
        str | None,
        typer.Option(help="smollm2, a small real model; or a folder, a GGUF file, or ORG/NAME on the hub."),
    ] = None,
    quantize: Quantize = None,
    kv: Kv = None,
) -> None:
    """Start a mesh, ask it one question and show where the time went.

    Example: baton demo "What happens when a worker dies?"
    """
    given = {"model": model, "worker.quantize": quantize, "worker.kv_dtype": kv}
    with readable_errors():
        run_until_signal(_demo(question, max_tokens, {key: value for key, value in given.items() if value}))


async def _demo(question: str, max_tokens: int, given: dict[str, str]) -> None:
    overrides = given | {
        "gateway.http_address": free_address(),
        "gateway.grpc_address": free_address(),
        "gateway.worker_address": free_address(),
        "gateway.local": "never",
    }
    mesh = with_models(read_settings(None, os.environ, overrides)).mesh()
    with drawn_token(mesh) as token:
        request = await _ask_mesh(mesh, overrides | token, question, max_tokens)
    say("\nWhere the time went, from the request's trace:\n")
    for line in draw(request, shutil.get_terminal_size((100, 24)).columns):
        print(line)


async def _ask_mesh(mesh: MeshConfig, overrides: dict[str, str], question: str, max_tokens: int) -> dict[str, Any]:
    """Start the mesh, show the answer, stop the mesh and return the request's trace."""
    services = services_of(mesh, file=None, overrides=overrides, otlp_endpoint=mesh.gateway.otlp_endpoint)
    say(f"starting {', '.join(service.name for service in services)}")
    async with running_mesh(mesh, services, _on_line, START_SECONDS):
        say(f"\nyou › {question}", style="bold")
        await _ask(mesh.gateway.grpc_address, tls_files(mesh.gateway), question, max_tokens)
        request = await last_finished(dialable(mesh.gateway.http_address), TRACE_SECONDS)
        if request is None:
            raise MeshFailed(f"the gateway has no trace of the request after {TRACE_SECONDS} s")
    return request


async def _ask(address: str, tls: TlsFiles | None, question: str, max_tokens: int) -> None:
    request = sampling(chat_request([("user", question)]), max_tokens=max_tokens, temperature=0.0, seed=None)
    async for event in stream(address, request, tls):
        if event.WhichOneof("event") == "delta":
            write(event.delta.text)
        elif event.WhichOneof("event") == "finished":
            usage = event.finished.usage
            write("\n")
            drafts = f"; {usage.accepted_tokens} of {usage.drafted_tokens} drafted tokens accepted"
            text = f"{usage.prompt_tokens} prompt tokens, {usage.completion_tokens} new ones"
            say(f"{text}{drafts if usage.drafted_tokens else ''}", style="dim")


def _on_line(name: str, line: str) -> None:
    """Show that a service is ready. Its other lines appear only in the error of a mesh that fails."""
    if READY in line:
        say(f"  {name:<10} {brief(line)}", style="dim")
