"""`baton explain REQUEST_ID`: where a request's time went, what the hardware allows at best, and why it was slow."""

import asyncio
import shutil
from collections.abc import Iterator
from typing import Annotated, Any
from urllib.parse import quote

import typer

from cli.connecting.api_key import api_key_headers
from cli.connecting.http_client import HttpClient, RequestFailed
from cli.connecting.http_url import gateway_url
from cli.errors import MeshError, readable_errors
from cli.output import emit_json, write
from cli.why.reasons import error_of, reasons
from cli.why.waterfall import Node, Waterfall, is_frame, waterfall
from mesh.telemetry import semconv

LEAST_COLUMNS = 12
MOST_STOPS = 3  # moments in which an event loop was blocked within one span; more of them share a row
ANSWER_SECONDS = 10.0
LEGEND = (
    "own: share that this stage alone explains; a moment that several share counts for the one that works.",
    "floor: least time on this hardware for this request alone; empty until the workers have measured it.",
)


def explain(
    request_id: Annotated[
        str, typer.Argument(help="The request's id (x-request-id of the answer); without one, the latest request.")
    ] = "",
    url: Annotated[str, typer.Option("--http", "--url", help="HTTP address of a gateway.")] = "127.0.0.1:8000",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object: shares, floors and reasons.")] = False,
) -> None:
    """Show where the time of a request went, stage by stage, and why it was slow.

    Column `own` is the share of the request that a stage alone explains: a moment that several stages share counts for
    the one that works, not for those that wait. Column `floor` is the least time that the hardware allows for this
    request alone; it is empty where the workers have not measured their hardware yet (some seconds after their start).

    Example: baton explain chat-42
    """
    with readable_errors():
        trace = asyncio.run(fetch(url, request_id))
        fall = waterfall(trace["spans"])
        if json:
            emit_json(as_json(trace, fall))
            return
        write("".join(f"{line}\n" for line in lines(trace, fall, shutil.get_terminal_size((110, 24)).columns)))


async def fetch(url: str, request_id: str) -> dict[str, Any]:
    """The request with its spans, from the gateway. MeshError when there is none."""
    gateway = HttpClient(gateway_url(url), api_key_headers(), keeps=False)
    if not request_id:
        latest = (await get_page(gateway, "/debug/requests?limit=20"))["requests"]
        ended = [each for each in latest if each["status"] != "running"]
        if not ended:
            raise MeshError(f"the gateway at {url} has finished no request yet; send one, or name its id")
        request_id = ended[0]["request_id"]
    path = f"/debug/requests/{quote(request_id, safe='')}"
    trace = await get_page(gateway, path, missing=f"no request {request_id!r}")
    if not trace["spans"]:
        raise MeshError(f"request {request_id} was not traced: the client's traceparent or `trace_share` left it out")
    return trace


async def get_page(gateway: HttpClient, path: str, *, missing: str = "") -> dict[str, Any]:
    """`missing`: what a Baton gateway does not have that answers 404."""
    server = f"{'https' if gateway.url.secure else 'http'}://{gateway.url.authority}"
    try:
        status, content = await gateway.fetch("GET", path, seconds=ANSWER_SECONDS)
    except RequestFailed as error:
        raise MeshError(f"no gateway answers at {server}: {error.detail}; name it with --http") from None
    if status != 200 or not isinstance(content, dict):
        problem = content.get("error") if isinstance(content, dict) else None
        why = problem.get("message") if isinstance(problem, dict) else problem
        if status == 404 and why and missing:
            last = f"`baton explain --http {server}` without an id shows the last one"
            raise MeshError(f"the gateway at {server} has {missing}: {last}, {server}/debug/requests lists what it has")
        text = f"{server}: {why or f'answers {path} with status {status}; is it a Baton gateway?'}"
        raise MeshError(text, reason=str(problem.get("reason", "")) if isinstance(problem, dict) else "")
    return content


def lines(trace: dict[str, Any], fall: Waterfall, columns: int = 110) -> list[str]:
    status = f"{trace['status']}: {error_of(trace, fall)}" if trace["status"] == "error" else trace["status"]
    head = f"{trace['request_id']}  {fall.root.name}  {trace['path'] or 'at no worker'}  {status}"
    tokens = f"{trace['prompt_tokens']} prompt tokens, {trace['completion_tokens']} new ones"
    first = trace["ttft_seconds"]
    ttft = "" if first is None else f", first token after {milliseconds(first * 1000)}"
    out = [head, f"trace {trace['trace_id']}: {milliseconds(fall.total)}{ttft}; {tokens}", ""]
    rows = [(nodes, _label(nodes)) for nodes in _rows(fall.root)]
    names = max(len(label) for _, label in rows)
    services = max(len(nodes[0].service) for nodes, _ in rows)
    width = max(LEAST_COLUMNS, columns - names - services - 35)
    out.append(f"{'':{names}}  {'':{services}}  {'':{width}} {'time':>9} {'own':>6} {'floor':>9}")
    for nodes, label in rows:
        node, share = nodes[0], sum(each.own for each in nodes)
        own = "" if is_frame(node, fall.root) else f"{100 * share / fall.total:.1f}%" if fall.total else ""
        bound = floor_of(node)
        least = "" if bound is None else milliseconds(bound)
        bar = _bar(nodes, fall.total, width)
        taken = milliseconds(sum(each.duration for each in nodes))
        out.append(f"{label:<{names}}  {node.service:<{services}}  {bar} {taken:>9} {own:>6} {least:>9}".rstrip())
    out += ["", *LEGEND, "", *reasons(trace, fall)]
    return out


def as_json(trace: dict[str, Any], fall: Waterfall) -> dict[str, Any]:
    stages = [
        {
            "stage": node.name,
            "service": node.service,
            "start_ms": node.start,
            "duration_ms": node.duration,
            "own_ms": node.own,
            "own_share": node.own / fall.total if fall.total else 0.0,
            "floor_ms": floor_of(node),
        }
        for node in fall.stages()
    ]
    kept = {key: value for key, value in trace.items() if key != "spans"}
    return {**kept, "tiled": fall.tiled, "stages": stages, "reasons": reasons(trace, fall)}


def floor_of(node: Node) -> float | None:
    """Milliseconds that this stage takes at least on its machine, where the worker has measured that."""
    seconds = node.attributes.get(semconv.FLOOR)
    return None if seconds is None else float(seconds) * 1000


def milliseconds(value: float) -> str:
    return f"{value:.2f} ms" if value < 10 else f"{value:.0f} ms" if value < 10_000 else f"{value / 1000:.1f} s"


def _rows(node: Node) -> Iterator[list[Node]]:
    """The spans of each row: one span, or the many in which an event loop was blocked within the same one."""
    yield [node]
    stops: dict[str, list[Node]] = {}  # by service
    for child in node.children:
        if child.name == semconv.LOOP_BLOCKED:
            stops.setdefault(child.service, []).append(child)
    folded = {service: found for service, found in stops.items() if len(found) > MOST_STOPS}
    for child in node.children:
        if child.name != semconv.LOOP_BLOCKED or child.service not in folded:
            yield from _rows(child)
    yield from folded.values()


def _label(nodes: list[Node]) -> str:
    return "  " * nodes[0].depth + nodes[0].name + (f" x {len(nodes)}" if len(nodes) > 1 else "")


def _bar(nodes: list[Node], total: float, width: int) -> str:
    cells, scale = [" "] * width, width / total if total else 0.0
    for node in nodes:
        first = min(width - 1, int(node.start * scale))
        last = max(first, min(width - 1, round(node.end * scale) - 1))
        mark = "█" if node.duration * scale >= 0.5 else "▏"
        cells[first : last + 1] = mark * (last - first + 1)
    return "".join(cells)
