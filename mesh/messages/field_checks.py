"""Checks of single fields that a peer states about itself: names that go into logs, and numbers to compute with."""

import math

MOST_LETTERS = 256  # length of the longest name


def text_problem(name: str, text: str, most: int = MOST_LETTERS) -> str:
    """Names go into logs, metrics and traces: they are short, and of printable characters."""
    if len(text) > most:
        return f"{name}: has {len(text)} characters, more than {most}"
    return "" if text.isprintable() else f"{name}: {text!r} has characters that cannot be printed"


def range_problem(name: str, value: float, low: int, high: float) -> str:
    if math.isfinite(value) and low <= value <= high:
        return ""
    return f"{name}: {value} is not between {low} and {high:.0f}"
