"""The `baton` command line: a table of commands, of which only the one that was asked for is imported.

So `baton --help` works with the base dependencies and answers at once, and a command whose packages are missing says
which extra brings them."""

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import typer

from cli.output import fail


@dataclass(frozen=True, slots=True)
class Entry:
    module: str
    attribute: str  # a function, or a typer.Typer with commands of its own
    summary: str


COMMANDS = {
    "up": Entry("cli.up", "up", "Start a mesh on this machine and keep it running."),
    "demo": Entry("cli.demo", "demo", "Start a mesh, ask it one question and draw where the time went."),
    "chat": Entry("cli.chat", "chat", "Talk to a running mesh."),
    "generate": Entry("cli.generate", "generate", "Complete one prompt on a running mesh."),
    "serve": Entry("cli.serve", "app", "Run one service: gateway, prefill or decode."),
    "verify": Entry("cli.verify.command", "verify", "Prove that the mesh gives the bits that one process gives."),
    "doctor": Entry("cli.doctor", "doctor", "What this machine can do, and what is in the way."),
    "model": Entry("cli.model", "app", "Look into model folders."),
}


def build(wanted: str | None) -> typer.Typer:
    """The command line with `wanted` in full and all others by name only."""
    app = typer.Typer(
        name="baton",
        help="Baton serves large language models from two tiers: prefill runs the first leg, decode the rest.",
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
    build(next((word for word in arguments if not word.startswith("-")), None))(prog_name="baton")


def _stub() -> None:
    """Stands in for a command that was not asked for."""


def _load(name: str, entry: Entry) -> Callable[..., Any] | typer.Typer:
    try:
        found: Callable[..., Any] | typer.Typer = getattr(importlib.import_module(entry.module), entry.attribute)
    except ModuleNotFoundError as error:
        fail(
            f"baton {name} needs the Python module {error.name}, which is missing: pip install 'baton[serve]'", status=2
        )
    return found
