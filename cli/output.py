"""Output of commands: answers go to stdout (with --json one JSON object), everything else to stderr."""

import json
import sys
from typing import Any, NoReturn

from rich.console import Console

from mesh.telemetry.lossy_output import WRITER

# What a command says when the packages of a server are missing. Baton is not on PyPI under its name.
INSTALL_SERVE = "pip install '.[serve]' in a checkout of Baton (or its wheel, with [serve] behind the file's name)"
err = Console(stderr=True, highlight=False, soft_wrap=True)


SAY_SECONDS = 0.2  # for which a line that nobody reads holds the command, and only the first one


def say(text: str, style: str | None = None) -> None:
    """Print a line of progress; rich reads no markup in it. A full disk and a pipe that is closed or that nobody reads
    cost the line and neither end nor hold the command; the loss is said once there is room again."""
    _print(text, style, "\n")


def _print(text: str, style: str | None, end: str) -> None:
    with err.capture() as printed:  # printing itself, rich ends the process when the pipe is closed
        err.print(text, style=style, markup=False, end=end)
    file = err.file
    try:
        number = file.fileno()
    except (OSError, ValueError, AttributeError):  # a file in memory
        file.write(printed.get())
        file.flush()
        return
    reads = WRITER.wait(0.0)  # nothing waits for the reader
    WRITER.put(number, printed.get().encode(getattr(file, "encoding", None) or "utf-8", "backslashreplace"))
    if reads:  # then the line is out at once, in order with what else the command prints
        WRITER.wait(SAY_SECONDS)


def fail(message: str, status: int = 1) -> NoReturn:
    """End the command. Status 2: configuration or arguments are wrong; 1: the command failed."""
    say(f"baton: {message}", style="red")
    raise SystemExit(status)


def emit_json(value: dict[str, Any]) -> None:
    print(json.dumps(value), flush=True)


def write_reasoning(text: str) -> None:
    """Print a piece of a model's reasoning without delay; it is no part of the answer."""
    _print(text, "dim", "")


def write(text: str) -> None:
    """Print a piece of an answer without delay."""
    sys.stdout.write(text)
    sys.stdout.flush()
