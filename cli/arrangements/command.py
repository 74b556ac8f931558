"""The part of `baton doctor` that measures arrangements: it runs them, shows the table, the plots and the verdict."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from rich.progress import Progress

from cli.arrangements.measure import ARRANGEMENTS, WORDS, MeasureOrder, Turns, measure_one
from cli.arrangements.picture import draw, plot, points_of, table
from cli.arrangements.turn import NoTokens
from cli.arrangements.verdict import best_of, sentences, share_of_default
from cli.errors import MeshFailed
from cli.output import emit_json, err, fail, say

Measure = Callable[[str, MeasureOrder, Callable[[str], None]], Awaitable[Turns]]


def show_arrangements(
    settings: Mapping[str, str],
    *,
    machine: str,
    model: str,
    chosen: str,
    picture: Path | None,
    as_json: bool,
    measure: Measure = measure_one,
) -> None:
    """`chosen`: what the default is on this machine, and why."""
    try:
        found = asyncio.run(_measured(MeasureOrder(settings), measure))
    except (MeshFailed, NoTokens) as error:
        fail(str(error))
    if picture is not None:
        picture.write_text(draw(found, title=f"Arrangements for {model}", subtitle=f"{machine}. {chosen}"))
        say(f"drawn into {picture}")
    if as_json:
        return emit_json(report(found, chosen))
    lines = table(found, WORDS)
    for clients in next(iter(found.values())):
        lines += ["", *plot(points_of(found, clients), "1 client" if clients == 1 else f"{clients} clients")]
    print("\n".join([f"{machine}, {model}", "", *lines, "", *sentences(found, chosen)]))


async def _measured(order: MeasureOrder, measure: Measure) -> dict[str, Turns]:
    found = dict[str, Turns]()
    with Progress(console=err) as progress:
        bar = progress.add_task("arrangements", total=len(ARRANGEMENTS))
        for name in ARRANGEMENTS:
            found[name] = await measure(name, order, lambda text: progress.update(bar, description=text))
            progress.update(bar, advance=1)
    return found


def report(found: Mapping[str, Turns], chosen: str) -> dict[str, Any]:
    counts = list(next(iter(found.values())))
    shares = {clients: share_of_default(found, clients) for clients in counts}
    return {
        "arrangements": {name: {str(n): turn.facts() for n, turn in turns.items()} for name, turns in found.items()},
        "default": chosen,
        "best": {str(clients): best_of(found, clients) for clients in counts},
        "default_share": {
            str(n): {"tokens": share.tokens, "ttft": share.ttft, "itl_p99": share.itl_p99}
            for n, share in shares.items()
        },
        "verdict": sentences(found, chosen),
    }
