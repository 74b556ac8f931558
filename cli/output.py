"""Output of commands: answers go to stdout (with --json one JSON object), everything else to stderr."""

import json
import os
import sys
from typing import Any, NoReturn

from rich.console import Console

# What a command says when the packages of a server are missing. Baton is not on PyPI under its name.
INSTALL_SERVE = "pip install '.[serve]' in a checkout of Baton (or its wheel, with [serve] behind the file's name)"
err = Console(stderr=True, highlight=False, soft_wrap=True)


class _Losses:
    """Calls of `say` whose text could not be written since the last that could."""

    count = 0
    cause = ""


def say(text: str, style: str | None = None) -> None:
    """Print a line of progress; rich reads no markup in it. A full disk or a closed pipe costs the line and ends
    nothing; the loss is said once there is room again."""
    with err.capture() as printed:  # printing itself, rich ends the process when the pipe is closed
        err.print(text, style=style, markup=False)
    try:
        if _Losses.count:
            _put(f"lines lost: {_Losses.count} ({_Losses.cause})\n")
            _Losses.count = 0
        _put(printed.get())
    except OSError as error:
        _Losses.count += 1
        _Losses.cause = error.strerror or str(error)


def _put(text: str) -> None:
    file = err.file
    try:
        number = file.fileno()
    except (OSError, ValueError, AttributeError):  # a file in memory
        file.write(text)
        file.flush()
        return
    # Past Python's buffer, which would keep what it could not write and fail again with it at the exit.
    rest = text.encode(getattr(file, "encoding", None) or "utf-8", "backslashreplace")
    while rest:
        rest = rest[os.write(number, rest) :]


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
