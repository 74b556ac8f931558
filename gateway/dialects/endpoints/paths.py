"""Answers from the table for a path that a client asks for, and the routes of those that a gateway serves.

A path that no row has belongs to the rows beside it: below `/ui`, `/debug` and `/metrics` lies what operators look at,
below `/v1/messages` errors are Anthropic's, below `/api` Ollama's."""

import inspect
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from starlette.routing import BaseRoute, Route, compile_path, request_response
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.dialects.endpoints.endpoint import ApiDialect, ApiEndpoint, Merged
from gateway.dialects.endpoints.table import ENDPOINTS
from gateway.tenants.tenants import Work

BY_ROUTE = {each.route: each for each in ENDPOINTS}
_PATTERNS = [(compile_path(each.path)[0], each) for each in ENDPOINTS]


def first_segment(path: str) -> str:
    return f"/{path.split('/')[1]}"


_OPERATED = [each for each in ENDPOINTS if each.work is Work.OPERATES]
OPERATORS = tuple(dict.fromkeys(first_segment(each.path) for each in _OPERATED if each.body is None))
_ORDERS = frozenset(each.path for each in _OPERATED if each.body is not None)  # what lies beside them is for clients
_MESSAGES = tuple(each.path for each in ENDPOINTS if each.dialect is ApiDialect.MESSAGES)
_OLLAMA = tuple(dict.fromkeys(first_segment(each.path) for each in ENDPOINTS if each.dialect is ApiDialect.OLLAMA))


@lru_cache(maxsize=1024)  # clients choose paths
def endpoint_at(path: str, method: str = "") -> ApiEndpoint | None:
    """The row that this path belongs to; without a method the first one."""
    found = [each for pattern, each in _PATTERNS if pattern.match(path)]
    first = found[:1] if not method else [each for each in found if each.method == method.lower()]
    return first[0] if first else None


def is_below(path: str, places: tuple[str, ...]) -> bool:
    return any(path == place or path.startswith(f"{place}/") for place in places)


def shows_operations(path: str) -> bool:
    return is_below(path, OPERATORS) or path.rstrip("/") in _ORDERS


def without_slash(path: str) -> str:
    """The path that is meant: a slash at its end changes nothing, except where operators look and at `/` itself."""
    if path == "/" or not path.endswith("/") or shows_operations(path):
        return path
    bare = path.rstrip("/")
    return bare if endpoint_at(bare) is not None else path


def streams(method: str, path: str) -> bool:
    """Whether the answer may be a stream of tokens."""
    row = endpoint_at(path, method)
    return row is not None and row.event is not None


def work_at(method: str, path: str) -> Work:
    """The work that a call counts as, also one that is refused then."""
    if shows_operations(path):
        return Work.OPERATES
    row = endpoint_at(path, method)
    if row is not None:
        return row.work
    return Work.GENERATES if method == "POST" else Work.LOOKS


def dialect_at(path: str) -> ApiDialect:
    row = endpoint_at(path)
    if row is not None:
        return row.dialect
    if is_below(path, _OLLAMA):
        return ApiDialect.OLLAMA
    return ApiDialect.MESSAGES if is_below(path, _MESSAGES) else ApiDialect.OPENAI


def merged_at(path: str) -> Merged | None:
    row = endpoint_at(path) or endpoint_at(path.rstrip("/") or "/")
    return row.merged if row is not None else None


def paths_of(routes: Iterable[BaseRoute]) -> list[str]:
    return [route.path for route in routes if isinstance(route, Route)]


def row_of(name: str) -> ApiEndpoint:
    """The row of a path, or of a method and a path where a path has several rows."""
    if " " in name:
        return BY_ROUTE[name]
    found = [each for each in ENDPOINTS if each.path == name]
    if len(found) != 1:
        raise KeyError(name)
    return found[0]


def routes_of(handlers: Mapping[str, Any]) -> list[BaseRoute]:
    """Routes for handlers by the names of their rows."""
    by_path = dict[str, dict[str, Any]]()
    for name, handler in handlers.items():
        row = row_of(name)
        by_path.setdefault(row.path, {})[row.method.upper()] = handler
    return [Route(path, _one_of(found), methods=[*found]) for path, found in by_path.items()]


def _one_of(by_method: Mapping[str, Any]) -> Any:
    """One handler for a path, so that its 405 names every method."""
    if len(by_method) == 1:
        return next(iter(by_method.values()))
    return _ByMethod({method: _app(handler) for method, handler in by_method.items()})


class _ByMethod:
    """An ASGI application: that of the request's method."""

    def __init__(self, apps: Mapping[str, ASGIApp]) -> None:
        self._apps = apps

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = scope["method"]
        await self._apps["GET" if method == "HEAD" else method](scope, receive, send)


def _app(handler: Any) -> ASGIApp:
    return request_response(handler) if inspect.isroutine(handler) else handler
