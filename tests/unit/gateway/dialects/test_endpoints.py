"""One table says what an endpoint is: no other file writes a list of paths, and what follows from a row is right."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cli.envoy.access import API, ORDERS
from gateway.batches.lines import URLS
from gateway.dialects.endpoints.endpoint import ApiDialect, Merged
from gateway.dialects.endpoints.paths import (
    BY_ROUTE,
    dialect_at,
    endpoint_at,
    merged_at,
    routes_of,
    shows_operations,
    streams,
    without_slash,
    work_at,
)
from gateway.dialects.endpoints.table import ENDPOINTS
from gateway.tenants.tenants import Work
from tests.unit.sources import ROOT, python_files, tree

PATH = re.compile(r"/(?:v1|health|load|version|metrics|debug|ui|docs|generate|inference|(?:de)?tokeniz\w+)\b[\w/.{}:]*")
PLACES = ("gateway/dialects/endpoints/table.py", "gateway/dialects/endpoints/kept.py")


def lists_of_paths(module: ast.AST) -> Iterator[ast.AST]:
    """Tuples, lists and sets with two paths of the API or more, and dictionaries whose values are no handlers."""
    for node in ast.walk(module):
        items: list[ast.expr | None] = []
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            items = list(node.elts)
        elif isinstance(node, ast.Dict) and all(isinstance(value, ast.Constant) for value in node.values):
            items = list(node.keys)
        found = [each for each in items if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        if sum(PATH.fullmatch(each.value) is not None for each in found) > 1:
            yield node


def test_no_file_of_the_gateway_writes_a_list_of_paths_but_the_table() -> None:
    found = {
        f"{path}:{node.lineno}"  # type: ignore[attr-defined]
        for path in python_files()
        if path.startswith("gateway/") and path not in PLACES
        for node in lists_of_paths(tree(path))
    }
    # What the page at `/` offers to a program, in its order; and the urls of OpenAI's batch format, see below.
    assert {each.partition(":")[0] for each in found} <= {"gateway/dialects/info.py", "gateway/batches/lines.py"}


def test_requests_of_a_batch_go_to_endpoints_that_generate() -> None:
    for url in URLS:
        row = endpoint_at(url, "POST")
        assert row is not None and row.work is Work.GENERATES and row.dialect.value in ("openai", "responses")


def test_a_list_of_paths_is_seen() -> None:
    assert len(list(lists_of_paths(ast.parse('GENERATES = ("/v1/chat/completions", "/generate")')))) == 1
    assert len(list(lists_of_paths(ast.parse('{"/ui": 1, "/debug/requests": 2}')))) == 1
    assert list(lists_of_paths(ast.parse('{"/ui": self._file, "/docs": self._docs}'))) == []


def test_routes_are_made_by_the_table_alone() -> None:
    makers = {
        path
        for path in python_files()
        if path.startswith("gateway/")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ImportFrom) and node.module == "starlette.routing"
        if any(each.name == "Route" for each in node.names)
    }
    assert makers == {"gateway/dialects/endpoints/paths.py"}
    with pytest.raises(KeyError):
        routes_of({"/v1/unheard": object()})


def test_no_method_of_a_path_has_two_rows() -> None:
    assert len(BY_ROUTE) == len(ENDPOINTS)
    for row in ENDPOINTS:
        example = re.sub(r"{[^}]*}", "x", row.path)
        assert endpoint_at(example, row.method.upper()) is row, example
        same = [each for each in ENDPOINTS if each.path == row.path]
        assert {each.dialect for each in same} == {row.dialect} and {each.merged for each in same} == {row.merged}


async def test_a_path_of_several_methods_has_one_route_that_allows_them_all() -> None:
    async def found(request: Request) -> Response:
        return Response(request.method)

    (route,) = routes_of({"GET /v1/responses/{id}": found, "DELETE /v1/responses/{id}": found})
    assert isinstance(route, Route) and route.methods == {"GET", "HEAD", "DELETE"}


@pytest.mark.parametrize(
    ("method", "path", "work"),
    [
        ("POST", "/v1/chat/completions", Work.GENERATES),
        ("POST", "/generate", Work.GENERATES),
        ("POST", "/v1/unheard", Work.GENERATES),
        ("POST", "/v1/messages/count_tokens", Work.COMPUTES),
        ("POST", "/tokenize", Work.COMPUTES),
        ("GET", "/v1/models", Work.LOOKS),
        ("GET", "/v1/chat/completions", Work.LOOKS),
        ("GET", "/debug/requests/x/y", Work.OPERATES),
        ("GET", "/debug/unheard", Work.OPERATES),
        ("POST", "/ui", Work.OPERATES),
        ("GET", "/metrics/", Work.OPERATES),
        ("DELETE", "/v1/responses/resp_1", Work.LOOKS),
        ("POST", "/v1/responses/resp_1/cancel", Work.LOOKS),
        ("POST", "/v1/responses/resp_1", Work.GENERATES),
        ("DELETE", "/v1/chat/completions", Work.LOOKS),
    ],
)
def test_what_a_call_counts_as(method: str, path: str, work: Work) -> None:
    assert work_at(method, path) is work


def test_every_answer_that_may_stream_has_a_bare_head() -> None:
    found = {row.path for row in ENDPOINTS if streams(row.method, row.path)}
    assert {"/generate", "/inference/v1/generate", "/v1/messages", "/v1/responses", "/v1/completions"} < found
    assert "/v1/embeddings" not in found and "/v1/messages/count_tokens" not in found


def test_a_slash_at_the_end_changes_nothing_where_clients_call() -> None:
    assert without_slash("/v1/models/") == "/v1/models" and without_slash("/v1/models/a/b/") == "/v1/models/a/b"
    assert without_slash("/tokenize/") == "/tokenize" and without_slash("/docs/") == "/docs"
    for path in ("/", "/ui/", "/metrics/", "/debug/requests/", "/unheard/"):
        assert without_slash(path) == path


def test_errors_below_messages_are_anthropics() -> None:
    assert dialect_at("/v1/messages/batches") is ApiDialect.MESSAGES is dialect_at("/v1/messages/count_tokens")
    assert dialect_at("/v1/messagess") is ApiDialect.OPENAI is dialect_at("/unheard")


def test_pages_that_speak_for_all_processes() -> None:
    assert merged_at("/debug/requests/chatcmpl-7") is Merged.FIRST and merged_at("/debug/requests") is Merged.LATEST
    assert merged_at("/health/") is Merged.HEALTH and merged_at("/metrics/") is Merged.METRICS
    assert merged_at("/debug/pages") is None is merged_at("/v1/models")


def test_envoys_edge_takes_calls_of_clients_and_none_of_operators() -> None:
    public = tuple(path for path in API if path.startswith(("/v1", "/health")))
    passed = {row.path for row in ENDPOINTS if row.path.startswith(public)}
    assert {path for path in passed if shows_operations(path)} == set(ORDERS), "the edge refuses these by themselves"
    assert {row.path for row in ENDPOINTS if row.path.startswith("/v1/")} < passed


def test_docs_name_every_described_endpoint() -> None:
    text = "\n".join(page.read_text() for page in Path(ROOT / "docs").glob("*.md"))
    lacking = [row.path for row in ENDPOINTS if row.summary and row.described_path.partition("{")[0] not in text]
    assert lacking == []
