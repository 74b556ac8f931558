"""Checks what a worker says of itself, Hello and Load, before a gateway computes with it.

Routing divides by page sizes, adds speeds and takes the smallest context, so one wrong number of one worker would harm
the requests of all. Every field is checked here. A problem names the field; then the gateway refuses that worker and
serves on (`gateway/attaching/attaching.py`)."""

import math
import re
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from mesh.messages.adapters import NamedAdapter
from mesh.messages.field_checks import range_problem, text_problem
from mesh.messages.hello_pairs import PageReach
from mesh.messages.page_shape_checks import MOST_LAYERS, MOST_PAGE_TOKENS, shape_problem
from mesh.messages.reports import Hello, Load

MOST_TOKENS = 1 << 31  # tokens of a context, a queue or a vocabulary
MOST_PAGES = 1 << 31
MOST_REQUESTS = 1 << 31
MOST_TOKENS_PER_SECOND = 1e9
LEAST_TOKENS_PER_SECOND = 1e-3  # slower ones make waits that no number holds; 0: not measured yet
MOST_PLACE_SECONDS = 3600.0  # between two places that get free
MOST_TRANSPORTS = 16
MOST_HASH_BYTES = 64
MOST_HASHES = 1 << 24
MOST_ADAPTERS = 1024
MOST_PATH = 4096  # letters of a folder's path
SPEEDS = ("tokens_per_second", "local_tokens_per_second")
MOST: dict[str, float] = {  # upper bound of each figure of Load
    "waiting": MOST_REQUESTS,
    "running": MOST_REQUESTS,
    "queued_tokens": MOST_TOKENS,
    "free_pages": MOST_PAGES,
    "total_pages": MOST_PAGES,
    "tokens_per_second": MOST_TOKENS_PER_SECOND,
    "opened": MOST_REQUESTS,
    "free_places": MOST_REQUESTS,
    "place_seconds": MOST_PLACE_SECONDS,
    "page_seconds": MOST_PLACE_SECONDS,
    "local_tokens_per_second": MOST_TOKENS_PER_SECOND,
}


def hello_problem(hello: Hello) -> str:
    """The first field that no worker of this version sends so, and why; empty: none."""
    texts = {
        "address": hello.address,
        "numerics": hello.numerics,
        "fingerprint": hello.fingerprint,
        "model": hello.model,
        "model_hash": hello.model_hash,
        "name": hello.name,
    }
    return (
        range_problem("incarnation", hello.incarnation, 1, (1 << 64) - 1)
        or next((problem for name, text in texts.items() if (problem := text_problem(name, text))), "")
        or ("" if hello.address else "address: is empty")
        or ("" if hello.model else "model: is empty")
        or range_problem("page_tokens", hello.page_tokens, 1, MOST_PAGE_TOKENS)
        or range_problem("context_tokens", hello.context_tokens, 1, MOST_TOKENS)
        or range_problem("vocabulary", hello.vocabulary, 0, MOST_TOKENS)
        or range_problem("window_tokens", hello.window_tokens, 0, MOST_TOKENS)
        or range_problem("chunk_tokens", hello.chunk_tokens, 0, MOST_TOKENS)
        or _bands(hello)
        or _hashes(hello.prefix.added)
        or _pages(hello.pages)
        or adapters_problem(hello.adapters)
        or load_problem(hello.load)
    )


def adapters_problem(adapters: Sequence[NamedAdapter]) -> str:
    """Names go into lists for clients, hashes into block hashes."""
    if len(adapters) > MOST_ADAPTERS:
        return f"adapters: are {len(adapters)}, more than {MOST_ADAPTERS}"
    for each in adapters:
        why = text_problem("adapters.name", each.name) or text_problem("adapters.folder", each.folder, MOST_PATH)
        if why or not each.name or not re.fullmatch("[0-9a-f]{64}", each.digest):
            return why or f"adapters: {each.name!r} has no name, or no hash"
    return ""


def load_problem(load: Load) -> str:
    """The same for the report that comes again and again."""
    speeds = {name: value for name in SPEEDS if (value := getattr(load, name)) != 0}
    return (
        next((why for name in MOST if (why := range_problem(f"load.{name}", getattr(load, name), 0, MOST[name]))), "")
        or range_problem("load.free_pages", load.free_pages, 0, load.total_pages)
        or next(
            (
                f"load.{name}: {value} is not 0 and below {LEAST_TOKENS_PER_SECOND}"
                for name, value in speeds.items()
                if value < LEAST_TOKENS_PER_SECOND
            ),
            "",
        )
    )


def clamped(load: Load) -> Load:
    """A worker's own report, with no figure beyond what gateways accept: a wild estimate must not cost it its place."""
    within: dict[str, Any] = {each.name: _clamped(each.name, getattr(load, each.name)) for each in fields(load)}
    found = replace(load, **within)
    return replace(found, free_pages=min(found.free_pages, found.total_pages))


def _clamped(name: str, value: float) -> float:
    if math.isnan(value) or value <= 0:
        return 0
    return min(max(value, LEAST_TOKENS_PER_SECOND) if name in SPEEDS else value, MOST[name])


def _bands(hello: Hello) -> str:
    for name in ("windowed_bands", "full_bands"):
        if problem := range_problem(name, getattr(hello, name), 0, MOST_LAYERS):
            return problem
    windowed, full = hello.windowed_bands, hello.full_bands
    if not windowed and not full:
        return ""
    if windowed and full and hello.window_tokens:
        return ""
    name = "windowed_bands" if windowed else "full_bands"
    return f"{name}: bands are {windowed} with a window of {hello.window_tokens} and {full} without, which cannot be"


def _pages(pages: PageReach | None) -> str:
    if pages is None:
        return ""
    if len(pages.transports) > MOST_TRANSPORTS:
        return f"pages.transports: has {len(pages.transports)} names, more than {MOST_TRANSPORTS}"
    texts = [("host", pages.host), *(("transports", each) for each in pages.transports)]
    return (
        next((problem for name, text in texts if (problem := text_problem(f"pages.{name}", text))), "")
        or range_problem("pages.uid", pages.uid, 0, (1 << 32) - 1)
        or ("" if pages.shape is None else shape_problem(pages.shape, "pages.shape"))
    )


def _hashes(hashes: tuple[bytes, ...]) -> str:
    if len(hashes) > MOST_HASHES:
        return f"prefix: has {len(hashes)} block hashes, more than {MOST_HASHES}"
    odd = next((each for each in hashes if not 0 < len(each) <= MOST_HASH_BYTES), None)
    return "" if odd is None else f"prefix: a block hash has {len(odd)} bytes, not 1 to {MOST_HASH_BYTES}"
