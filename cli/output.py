"""Output of commands: answers go to stdout (with --json one JSON object), everything else to stderr."""

import json
import sys
from typing import Any, NoReturn

from rich.console import Console

# What a command says when the packages of a server are missing. Baton is not on PyPI under its name.
INSTALL_SERVE = "pip install '.[serve]' in a checkout of Baton (or its wheel, with [serve] behind the file's name)"
err = Console(stderr=True, highlight=False, soft_wrap=True)


def say(text: str, style: str | None = None) -> None:
    """Print a line of progress; rich reads no markup in it."""
    err.print(text, style=style, markup=False)


def fail(message: str, status: int = 1) -> NoReturn:
    """End the command. Status 2: configuration or arguments are wrong; 1: the command failed."""
    say(f"baton: {message}", style="red")
    raise SystemExit(status)


def emit_json(value: dict[str, Any]) -> None:
    print(json.dumps(value), flush=True)


def write_reasoning(text: str) -> None:
    """Print a piece of a model's reasoning without delay; it is no part of the answer."""
    err.print(text, style="dim", markup=False, end="")


def write(text: str) -> None:
    """Print a piece of an answer without delay."""
    sys.stdout.write(text)
    sys.stdout.flush()
