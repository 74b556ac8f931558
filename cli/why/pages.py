"""`baton pages`: who holds the pages of every worker, as sums and a map, or page by page.

The gateway asks the workers (`GET /debug/pages`). A map draws the pool as characters, one for neighbouring pages; a
character shows the gravest state among its pages, so that one quarantined page of a million is seen."""

import asyncio
import re
import shutil
from collections.abc import Iterator
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from cli.connecting.api_key import api_key_headers
from cli.connecting.http_client import HttpClient
from cli.connecting.http_url import gateway_url
from cli.errors import MeshError, readable_errors
from cli.output import emit_json, write
from cli.why.explain import get_page
from mesh.errors import InvalidRequest

STATES = ("free", "cached", "in_use", "landing", "quarantined")  # a later one is graver
LETTERS = dict(zip("fculq", STATES, strict=True))
SIGNS = dict(zip(STATES, ".-#+X", strict=True))
LEGEND = "  ".join(f"{SIGNS[state]} {state}" for state in STATES)
MAP_ROWS, LEAST_COLUMNS = 4, 20
MOST_HOLDERS = 12  # largest holders of a worker, which the short form shows
LISTED = 65_536  # pages of one answer

Json = dict[str, Any]


def pages(
    url: Annotated[str, typer.Option("--http", "--url", help="HTTP address of a gateway.")] = "127.0.0.1:8000",
    worker: Annotated[str, typer.Option(help="Name, address or id of one worker; without one, all.")] = "",
    every: Annotated[bool, typer.Option("--all", help="List all pages, as runs of equal neighbours.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the state of every page of every worker, and who holds it.

    A page is free, cached (its tokens are known, no request refers to it), in use by requests, landing (a prefill
    worker may write it) or quarantined (its landing has ended, and nothing proves yet that its writer writes no more).

    Example: baton pages --worker decode-1 --all
    """
    with readable_errors():
        view = asyncio.run(fetch(url, worker, every=every))
        if json:
            emit_json(view)
        else:
            write("".join(f"{line}\n" for line in lines(view, shutil.get_terminal_size((110, 24)).columns)))


async def fetch(url: str, worker: str, *, every: bool) -> Json:
    """The pages of the worker, or of all. Each answer lists a range of them; a worker may leave between two."""
    gateway = HttpClient(gateway_url(url), api_key_headers(), keeps=False)
    asked = {"worker": worker} if worker else {}
    view = await get_page(gateway, f"/debug/pages?{urlencode(asked)}")
    for each in view["workers"] if every else ():
        each["ranges"] = []
        for first in range(0, each.get("pages", 0), LISTED):
            each["ranges"].append(await fetch_range(gateway, each["id"], first))
    return view


async def fetch_range(gateway: HttpClient, worker: str, first: int) -> Json:
    query = urlencode({"worker": worker, "first": first, "count": LISTED})
    try:
        (part,) = (await get_page(gateway, f"/debug/pages?{query}"))["workers"]
    except MeshError as error:
        if error.reason != InvalidRequest.reason:
            raise
        part = {"answered": False}  # the worker is not attached any more
    if not part["answered"]:
        return {"first": first, "answered": False}
    return {name: part[name] for name in ("first", "answered", "runs", "holders")}


def lines(view: Json, columns: int) -> Iterator[str]:
    for alarm in view["alarms"]:
        yield f"ALARM  {alarm}"
    for worker in view["workers"]:
        yield from worker_lines(worker, columns)
    yield f"\n{LEGEND}" if view["workers"] else "no worker is attached"


def worker_lines(worker: Json, columns: int) -> Iterator[str]:
    yield f"\n{worker['worker']}  {worker['tier']} at {worker['address']}"
    if not worker["answered"]:
        yield "  does not answer: it hangs, or it is of an older version"
        return
    states = worker["states"]
    sums = ", ".join(f"{states[state]:,} {state.replace('_', ' ')}" for state in STATES if states[state])
    yield f"  {worker['pages']:,} pages of {worker['page_tokens']} tokens: {sums}"
    for fault in worker["faults"]:
        yield f"  DOES NOT ADD UP  {fault}"
    yield from (f"  {row}" for row in drawn(worker["map"], max(LEAST_COLUMNS, columns - 2)))
    if "ranges" in worker:
        yield from listed(worker)
        return
    holders = sorted(worker["holders"], key=lambda each: (-STATES.index(each["state"]), -each["pages"]))
    for holder in holders[:MOST_HOLDERS]:
        yield f"  {holder['pages']:>9,} {described(holder)}"
    if len(holders) > MOST_HOLDERS:
        yield f"  and {len(holders) - MOST_HOLDERS} more holders; --all lists every page"


def listed(worker: Json) -> Iterator[str]:
    for part in worker["ranges"]:
        page = part["first"]
        if not part["answered"]:
            yield f"  pages {page}-{min(page + LISTED, worker['pages']) - 1}: no answer"
            continue
        for count, state, by in part["runs"]:
            place = f"{page}" if count == 1 else f"{page}-{page + count - 1}"
            who = "; ".join(described(part["holders"][index]) for index in by) or state.replace("_", " ")
            yield f"  {place:>17}  {who}"
            page += count


def described(holder: Json) -> str:
    """Example: landing by request 0f…, attempt 1, landing, writer prefill-1, for 0.2 s."""
    name = holder["request_id"] or holder["request"]
    what = [holder["state"].replace("_", " ") + (f" by request {name}" if name else f" by {holder['what']}")]
    if name:
        what += [f"attempt {holder['attempt']}", holder["what"]]
    if holder["writer"]:
        what.append(f"writer {holder['writer']}")
    if holder["why"]:
        what.append(f"because: {holder['why']}")
    if holder["seconds"] is not None:
        what.append(f"for {holder['seconds']:.1f} s")
    return ", ".join(what)


def drawn(text: str, columns: int) -> list[str]:
    """The map of the gateway, "1:f120c3", in at most a few rows."""
    cells = [LETTERS.get(letter, "free") for letter, count in re.findall(r"(\D)(\d+)", text.partition(":")[2])
             for _ in range(int(count))]  # fmt: skip
    together = max(1, -(-len(cells) // (columns * MAP_ROWS)))
    groups = [cells[i : i + together] for i in range(0, len(cells), together)]
    row = "".join(SIGNS[max(group, key=STATES.index)] for group in groups)
    return [row[i : i + columns] for i in range(0, len(row), columns)]
