"""Pages that show a gateway of several processes as one: the process that is asked adds what the others answer.

The table of endpoints says which pages are such; every other request belongs to the process that its connection landed
on. What a process counts itself has the label `process` in metrics; what all of them see alike, such
as the workers' own measures, stands there once."""

import asyncio
import re
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.dialects.endpoints.endpoint import Merged
from gateway.dialects.endpoints.paths import merged_at
from gateway.process.siblings import OwnAnswer, Question, Siblings

_SERIES = re.compile(r'[^{ ]+(?:\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})?')  # a line's metric and its labels
Merge = Callable[[OwnAnswer, Sequence[OwnAnswer]], OwnAnswer]


class WholePages:
    """An ASGI application: another one, whose pages about itself speak for all processes."""

    def __init__(self, app: ASGIApp, alone: ASGIApp, siblings: Siblings) -> None:
        """`alone` answers the other processes, which have looked at the caller's key."""
        self._app = app
        self._alone = alone
        self._siblings = siblings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        looks = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
        if not looks or (how := merged_at(scope["path"])) is None:
            await self._app(scope, receive, send)
            return
        merge = MERGES[how]
        given = dict(scope["headers"])
        plain = [(name, value) for name, value in scope["headers"] if name != b"accept-encoding"]
        question = Question(scope["path"], scope["query_string"].decode("latin-1"), _text(given.get(b"accept")))
        head, own = await _call(self._app, {**scope, "headers": plain}, receive)
        refused = own.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
        others = () if refused else await self._siblings.ask(question)
        whole = own if refused else await asyncio.to_thread(merge, own, others)
        if how is Merged.HEALTH and self._siblings.silent:
            silent = {"silent_processes": sorted(self._siblings.silent)}
            whole = OwnAnswer(whole.status, msgspec.json.encode(_decoded(whole) | silent))
        headers = [(name, value) for name, value in head["headers"] if name.lower() != b"content-length"]
        headers.append((b"content-length", str(len(whole.content)).encode()))
        await send({"type": "http.response.start", "status": whole.status, "headers": headers})
        await send({"type": "http.response.body", "body": whole.content})

    async def listen(self) -> None:
        """Answer the other processes from now on."""
        await self._siblings.listen(self.answer_alone)

    async def close(self) -> None:
        await self._siblings.close()

    async def answer_alone(self, question: Question) -> OwnAnswer:
        """The answer of this process alone, to another one."""
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": question.path,
            "raw_path": question.path.encode(),
            "query_string": question.query.encode("latin-1"),
            "root_path": "",
            "headers": [(b"host", b"localhost"), (b"accept", question.accept.encode("latin-1"))],
            "client": None,
            "server": None,
        }
        head, own = await _call(self._alone, scope, _nothing_more)
        return OwnAnswer(head["status"], own.content)


async def _nothing_more() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _call(app: ASGIApp, scope: Scope, receive: Receive) -> tuple[Message, OwnAnswer]:
    """The head and the whole answer of an application."""
    messages: list[Message] = []

    async def note(message: Message) -> None:
        messages.append(message)

    await app(scope, receive, note)
    head, *bodies = messages
    return head, OwnAnswer(head["status"], b"".join(body.get("body", b"") for body in bodies))


def _text(header: bytes | None) -> str:
    return (header or b"*/*").decode("latin-1")


# ---- how the answers of all processes become one


def first_found(own: OwnAnswer, others: Sequence[OwnAnswer]) -> OwnAnswer:
    return next((answer for answer in (own, *others) if answer.status == 200), own)


def health(own: OwnAnswer, others: Sequence[OwnAnswer]) -> OwnAnswer:
    """The gateway is as healthy as this process, since the others take connections of their own. Of the workers of a
    tier, those count that every process has."""
    pages = [_decoded(answer) for answer in (own, *others)]
    whole: dict[str, Any] = _fewest(pages)
    if "models" in whole:
        whole["models"] = {
            name: _fewest([own, *(page["models"][name] for page in pages[1:] if name in page.get("models", {}))])
            for name, own in whole["models"].items()
        }
    for name in ("refused_workers", "alarms"):
        if found := list(dict.fromkeys(reason for page in pages for reason in page.get(name, ()))):
            whole[name] = found
    if silent := _longest_silent(pages):
        whole["silent_workers"] = silent
    return OwnAnswer(own.status, msgspec.json.encode({**whole, "processes": len(pages)}))


def _longest_silent(pages: Sequence[dict[str, Any]]) -> list[Any]:
    """The workers that stand still, each as the process says that has not heard from it for longest."""
    found = dict[Any, Any]()
    for each in (each for page in pages for each in page.get("silent_workers", ())):
        known = found.setdefault((each["name"], each["address"]), each)
        if each["silent_seconds"] > known["silent_seconds"]:
            found[each["name"], each["address"]] = each
    return list(found.values())


def _fewest(pages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The first page, with the smallest of all its counts."""
    counts = {key: min(page.get(key, 0) for page in pages) for key, value in pages[0].items() if isinstance(value, int)}
    return pages[0] | counts


def load(own: OwnAnswer, others: Sequence[OwnAnswer]) -> OwnAnswer:
    pages = [_decoded(answer) for answer in (own, *others)]
    return OwnAnswer(
        own.status, msgspec.json.encode({key: sum(page.get(key, 0) for page in pages) for key in pages[0]})
    )


def latest_requests(own: OwnAnswer, others: Sequence[OwnAnswer]) -> OwnAnswer:
    """The last requests of all, the newest first; as many as the process that has most of them shows."""
    if own.status != 200:
        return own
    lists = [_decoded(answer).get("requests", []) for answer in (own, *others) if answer.status == 200]
    found = sorted((each for each_list in lists for each in each_list), key=lambda each: -each["started_at"])
    return OwnAnswer(200, msgspec.json.encode({"requests": found[: max(map(len, lists))]}))


def metrics(own: OwnAnswer, others: Sequence[OwnAnswer]) -> OwnAnswer:
    """The series of all, each metric in one place. Of equal series the one of the process that was asked stands."""
    if own.status != 200:
        return own
    families: dict[str, dict[str, str]] = {}  # lines of each metric by name and labels
    heads: dict[str, list[str]] = {}
    for answer in (own, *(other for other in others if other.status == 200)):
        name = ""
        for line in answer.content.decode().splitlines():
            if line == "# EOF":
                continue
            if line.startswith("# "):
                name = line.split(" ", 3)[2]
                if line not in (head := heads.setdefault(name, [])):
                    head.append(line)
            elif found := _SERIES.match(line):
                families.setdefault(name, {}).setdefault(found[0], line)
    lines = [line for name in heads for line in (*heads[name], *families.get(name, {}).values())]
    end = ["# EOF"] if own.content.endswith(b"# EOF\n") else []
    return OwnAnswer(200, "".join(f"{line}\n" for line in (*lines, *end)).encode())


def _decoded(answer: OwnAnswer) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(answer.content)
    return found


MERGES: dict[Merged, Merge] = {
    Merged.FIRST: first_found,
    Merged.HEALTH: health,
    Merged.LOAD: load,
    Merged.METRICS: metrics,
    Merged.LATEST: latest_requests,
}
