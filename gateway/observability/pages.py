"""`GET /debug/pages`: who holds the pages of every worker, as JSON; `baton pages` draws it.

Sums and holders by default. With `count` the pages from `first` on come one by one, as runs of neighbours with the same
state and the same holders. It shows ids, sizes and times; no prompt and no output."""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from gateway.attaching.service import Gateway
from gateway.dialects.endpoints.paths import routes_of
from gateway.dialects.info import error_page
from gateway.workers.attached import AttachedWorker
from mesh.errors import InvalidRequest, brief
from mesh.messages.reports import PageHolder, PageReport
from mesh.sessions.page_map import PAGE_STATES, spell
from mesh.sessions.page_reports import MOST_LISTED

Json = dict[str, Any]
MOST_PAGES = (1 << 32) - 1


def page_routes(view: Callable[[str, int, int], Awaitable[Json]]) -> list[BaseRoute]:
    """`view`: view_of_pages of the gateway."""

    async def pages(request: Request) -> Response:
        asked = request.query_params
        try:
            first, count = number(asked, "first", MOST_PAGES), number(asked, "count", MOST_LISTED)
            found = await view(asked.get("worker", ""), first, count)
        except InvalidRequest as error:
            return error_page(error)
        headers = {"cache-control": "no-store"}
        return Response(msgspec.json.encode(found), 200, headers, media_type="application/json")

    return routes_of({"/debug/pages": pages})


def number(asked: Mapping[str, str], name: str, most: int) -> int:
    text = asked.get(name, "0")
    if not re.fullmatch("[0-9]{1,10}", text) or int(text) > most:
        raise InvalidRequest(name, f"{name} is {brief(text)!r}; it must be a whole number from 0 to {most}")
    return int(text)


async def view_of_pages(gateway: Gateway, name: str, first: int, count: int) -> Json:
    """The pages of the worker with this name, address or id; without a name those of every worker."""
    workers = [each for each in gateway.workers if name in ("", each.name, each.hello.address, id_of(each.incarnation))]
    if name and not workers:
        known = ", ".join(each.name for each in gateway.workers) or "none"
        raise InvalidRequest("worker", f"worker {brief(name)!r} is not attached; attached: {known}")
    reports = await gateway.attaching.page_queries.ask(workers, first, count)
    views = [worker_pages(gateway, worker, report, first, count) for worker, report in reports]
    return {"workers": views, "alarms": list(gateway.alarms())}


def worker_pages(gateway: Gateway, worker: AttachedWorker, report: PageReport | None, first: int, count: int) -> Json:
    about = {
        "worker": worker.name,
        "id": id_of(worker.incarnation),
        "tier": worker.tier.value,
        "address": worker.hello.address,
        "model": worker.model,
        "page_tokens": worker.hello.page_tokens,
        "answered": report is not None,
    }
    if report is None:
        return about
    numbers = report.free, report.cached, report.in_use, report.landing, report.quarantined
    states = dict(zip(PAGE_STATES, numbers, strict=True))
    found = about | {
        "pages": sum(states.values()),
        "states": states,
        "holders": [holder_json(gateway, holder) for holder in report.holders],
        "faults": list(report.faults),
        "map": spell(report.page_map),
    }
    return found | {"first": first, "runs": runs_json(report)} if count else found


def holder_json(gateway: Gateway, holder: PageHolder) -> Json:
    request, writer = (
        gateway.sequencer.requests.get(holder.request),
        gateway.workers.get(holder.writer),
    )
    return {
        "what": holder.what,
        "state": holder.state,
        "pages": holder.pages,
        "request": id_of(holder.request) if holder.request else None,
        "request_id": request.choice.request_id if request is not None else None,  # another gateway's id is not known
        "attempt": holder.attempt,
        "writer": writer.name if writer is not None else id_of(holder.writer) if holder.writer else None,
        "why": holder.why,
        "seconds": round(holder.seconds, 3) if holder.seconds >= 0 else None,
    }


def runs_json(report: PageReport) -> list[list[Any]]:
    """Each run as [pages, state, indexes of its holders]."""
    runs, place = list[list[Any]](), 0
    for length, code, sharers in zip(report.lengths, report.states, report.sharers, strict=False):
        state = PAGE_STATES[code] if code < len(PAGE_STATES) else "unknown"
        runs.append([length, state, list(report.held_by[place : place + sharers])])
        place += sharers
    return runs


def id_of(incarnation: int) -> str:
    return f"{incarnation:016x}"
