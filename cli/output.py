"""How commands talk: answers on stdout, everything else on stderr, one JSON object where a program reads."""

import json
import sys
from typing import Any, NoReturn

from rich.console import Console

err = Console(stderr=True, highlight=False, soft_wrap=True)


def say(text: str, style: str | None = None) -> None:
    """A line of progress. Nothing in it is read as markup."""
    err.print(text, style=style, markup=False)


def fail(message: str, status: int = 1) -> NoReturn:
    """2: what was asked is wrong (configuration, arguments); 1: it did not work."""
    say(f"baton: {message}", style="red")
    raise SystemExit(status)


def emit_json(value: dict[str, Any]) -> None:
    print(json.dumps(value), flush=True)


def write(text: str) -> None:
    """A piece of an answer, at once."""
    sys.stdout.write(text)
    sys.stdout.flush()
