"""The `baton` command line: a table of commands, of which only the called one is imported.

So `baton --help` works with the base dependencies and answers at once, and a command whose packages are missing names
the extra that installs them."""

import errno
import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import typer

from cli.output import INSTALL_SERVE, fail

UNWRITABLE = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class Entry:
    module: str
    attribute: str  # a function, or a typer.Typer with commands of its own
    summary: str


COMMANDS = {
    "up": Entry("cli.local_mesh.up", "up", "Start a mesh on this machine and keep it running."),
    "demo": Entry("cli.local_mesh.demo", "demo", "Start a mesh, ask it one question and show where the time went."),
    "chat": Entry("cli.clients.chat", "chat", "Hold a conversation with a running mesh."),
    "generate": Entry("cli.clients.generate", "generate", "Complete one prompt on a running mesh."),
    "serve": Entry("cli.local_mesh.serve", "app", "Run one service: gateway, prefill or decode."),
    "health": Entry(
        "cli.local_mesh.probe", "probe", "Ask the service of this container or machine whether it can serve."
    ),
    "verify": Entry("cli.verify.command", "verify", "Show that any mesh computes the same bits as one process."),
    "replay": Entry("cli.receipts.replay", "replay", "Generate the answer of a receipt again and compare every token."),
    "receipt": Entry("cli.receipts.receipt", "receipt", "Check the signature of a receipt and show what it says."),
    "doctor": Entry("cli.doctoring.doctor", "doctor", "Check this machine: kernels, GPU, transports, ports, memory."),
    "explain": Entry("cli.why.explain", "explain", "Show where a request's time went, and why it was slow."),
    "pages": Entry("cli.why.pages", "pages", "Show who holds the pages of every worker."),
    "batch": Entry("cli.batch.command", "app", "Answer a file of requests in OpenAI's batch format."),
    "bench": Entry("cli.load.command", "app", "Measure a server under load: latencies, goodput, a picture."),
    "envoy": Entry("cli.envoy.command", "app", "Put an Envoy in front of every service."),
    "model": Entry("cli.local_mesh.model", "app", "Download a model of the hub, or check a model folder."),
    "quantize": Entry("cli.models.quantize", "quantize", "Write a model in eight or four bits."),
    "keys": Entry("cli.keys", "app", "Add, list and remove the keys of tenants."),
}


def build(wanted: str | None) -> typer.Typer:
    """The command line: `wanted` with all its options, the other commands by name only."""
    app = typer.Typer(
        name="baton",
        help=(
            "Baton serves large language models from two tiers of workers. Prefill workers compute prompts and hand "
            "their KV pages over; decode workers generate the tokens. `baton up` starts such a mesh on this machine."
        ),
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name, entry in COMMANDS.items():
        target = _load(name, entry) if name == wanted else _stub
        if isinstance(target, typer.Typer):
            app.add_typer(target, name=name)
        elif target is _stub:
            app.command(name, help=entry.summary)(target)
        else:
            app.command(name)(target)
    return app


def main() -> None:
    arguments = sys.argv[1:]
    try:
        try:
            build(next((word for word in arguments if not word.startswith("-")), None))(prog_name="baton")
        finally:
            sys.stdout.flush()  # what fails here would fail at the exit, with a traceback
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is buffered goes nowhere
        if error.errno == errno.EPIPE:  # the reader has enough, as `head` does
            raise SystemExit(1) from None
        fail(f"the output cannot be written: {error.strerror}")


def _stub() -> None:
    """Placeholder of a command that was not called."""


def _load(name: str, entry: Entry) -> Callable[..., Any] | typer.Typer:
    try:
        found: Callable[..., Any] | typer.Typer = getattr(importlib.import_module(entry.module), entry.attribute)
    except ModuleNotFoundError as error:
        fail(f"baton {name} needs the Python module {error.name}, which is missing: {INSTALL_SERVE}", status=2)
    return found
