"""`/openapi.json`: the table of endpoints as an OpenAPI 3.1 document, with schemas made of the msgspec types.

Fields that change nothing, limits of bodies and the statuses of errors come from where the gateway enforces them. An
event of a stream is described as what a client parses: an object whose `data` is JSON, or [DONE]."""

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from gateway.dialects.described.answers import ErrorAnswer
from gateway.dialects.endpoints.endpoint import BYTES, TEXT, ApiEndpoint
from gateway.dialects.endpoints.paths import is_below, shows_operations
from gateway.dialects.endpoints.table import ENDPOINTS
from gateway.dialects.info import package_version
from gateway.dialects.openai.body import HINTS
from gateway.dialects.reference.bounds import bounds
from gateway.dialects.reference.models import DescribedModel
from gateway.dialects.reference.translated_bounds import translated_bounds
from mesh import errors
from mesh.config.door_config import DoorConfig

Json = dict[str, Any]
_REF = "#/components/schemas/{name}"
_JSON, _SSE, _LINES = "application/json", "text/event-stream", "application/x-ndjson"
_FORM = "multipart/form-data"
_CONNECTION = {400: "MALFORMED_REQUEST", 408: "REQUEST_TIMEOUT", 421: "UNKNOWN_HOST", 431: "HEADERS_TOO_LARGE"}
_OWN = {503: "TOO_MANY_CONNECTIONS"}
_KEYS = (errors.Unauthenticated, errors.Forbidden, errors.RateLimited)
_NEVER = {499, 504}  # in logs only; over gRPC only
_HEADER: Json = {"schema": {"type": "string"}}
_FLAG: Json = {"schema": {"enum": ["true", "false"]}}


def document(limits: DoorConfig, model: DescribedModel, paths: Iterable[str]) -> Json:
    """`paths`: those that the gateway serves."""
    served = set(paths)
    rows = [row for row in ENDPOINTS if row.summary and served & {row.path, row.described_path}]
    bodies = {row.route: row.body for row in rows if row.body is not None}
    answers = [
        kind
        for row in rows
        for kind in (row.answer, row.event, row.error, ErrorAnswer, *row.also.values())
        if kind not in (None, TEXT, BYTES)
    ]
    requests, components = msgspec.json.schema_components(bodies.values(), ref_template=_REF)
    known = bounds(limits, model)
    translated = translated_bounds(limits, model)
    for name, schema in components.items():
        _bind(schema, known | translated.get(name, {}))
    needs = {schema["$ref"].rpartition("/")[2]: row for schema, row in zip(requests, _with_body(rows), strict=True)}
    for name, row in needs.items():
        _finish_body(components[name], row)
    found, more = msgspec.json.schema_components(answers, ref_template=_REF)
    by_type = dict(zip(map(repr, answers), found, strict=True))
    by_route, operations = dict(zip(bodies, requests, strict=True)), dict[str, Json]()
    for row in rows:
        operations.setdefault(row.described_path, {}).update(_operation(row, by_type, by_route, limits))
    keys = {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}} if limits.keys_file is not None else {}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Baton",
            "version": package_version(),
            "summary": f"The HTTP API of this gateway, which serves {model.name}",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": operations,
        "components": {"schemas": dict(sorted((components | more).items())), **keys},
    }


def _with_body(rows: list[ApiEndpoint]) -> list[ApiEndpoint]:
    return [row for row in rows if row.body is not None]


def _bind(schema: Json, known: dict[str, dict[str, Json]]) -> None:
    """Add the bounds of the fields of one body to the branches of their types."""
    for name, value in schema.get("properties", {}).items():
        for branch in value.get("anyOf", [value]):
            more = known.get(name, {}).get(branch.get("type", ""), {})
            if "anyOf" in more:
                branch.pop("items", None)
            branch.update(more)


def _finish_body(schema: Json, row: ApiEndpoint) -> None:
    """Fields that must be there, and those that are taken and change nothing."""
    properties = schema["properties"]
    for name in row.needs:
        value = properties[name]
        value.pop("default", None)
        value["anyOf"] = [branch for branch in value["anyOf"] if branch.get("type") != "null"]
    schema["required"] = [*schema.get("required", ()), *row.needs]
    if row.either:
        schema["anyOf"] = [_alone(name, row.either) for name in row.either]
    if row.form:
        return
    what = "changes nothing; the answer names it in the header x-baton-ignored"
    properties |= {name: {"description": what} for name in sorted(HINTS) if name not in properties}


def _alone(name: str, others: tuple[str, ...]) -> Json:
    """A body that has this field and none of the others."""
    absent = {other: {"type": "null"} for other in others if other != name}
    return {"required": [name], "properties": {name: {"not": {"type": "null"}}, **absent}}


def _operation(row: ApiEndpoint, by_type: dict[str, Json], bodies: dict[str, Json], limits: DoorConfig) -> Json:
    found: Json = {
        "operationId": _name_of(row),
        "summary": row.summary,
        "parameters": _parameters(row),
        "responses": {"200": _answer(row, by_type)},
    }
    if row.body is not None:
        found["requestBody"] = {
            "required": True,
            "content": {_FORM if row.form else _JSON: {"schema": bodies[row.route]}},
        }
    for status, answer in row.also.items():
        either = {"anyOf": [by_type[repr(answer)], by_type[repr(row.error)]]}
        found["responses"][str(status)] = _response("no worker can take a request", either)
    if _is_guarded(row, limits):
        found["security"] = [{"key": []}]
    for status, reasons in sorted(_errors(row, guarded="security" in found).items()):
        if status not in row.also:
            found["responses"][str(status)] = _error(status, reasons, _error_type(row, status, by_type))
    return {row.method: found}


def _is_guarded(row: ApiEndpoint, limits: DoorConfig) -> bool:
    """Whether the caller needs a key."""
    return limits.keys_file is not None and (row.method != "get" or not is_below(row.path, limits.keys_open_paths))


def _error_type(row: ApiEndpoint, status: int, by_type: dict[str, Json]) -> Json:
    """The gateway refuses a connection before it knows the path, and then always in OpenAI's form."""
    kinds = [by_type[repr(row.error)], by_type[repr(ErrorAnswer)]]
    return {"anyOf": kinds} if kinds[0] != kinds[1] and status in _CONNECTION | _OWN else kinds[0]


def _name_of(row: ApiEndpoint) -> str:
    return re.sub(r"\W+", "_", f"{row.method}{row.described_path}").strip("_")


def _parameters(row: ApiEndpoint) -> list[Json]:
    inside = {name: {"type": "string", "minLength": 1} for name in re.findall(r"{(\w+)}", row.described_path)}
    found = [{"name": name, "in": "path", "required": True, "schema": schema} for name, schema in inside.items()]
    return found + [{"name": name, "in": "query", "schema": schema} for name, schema in row.query.items()]


def _answer(row: ApiEndpoint, by_type: dict[str, Json]) -> Json:
    if row.answer == BYTES:
        content = {BYTES: {"schema": {"type": "string"}}}
        return {"description": row.summary, "headers": {"x-request-id": _named()}, "content": content}
    if row.answer == TEXT:
        text = {"schema": {"type": "string"}}
        kinds: Json = {TEXT: text, "application/openmetrics-text": text}
        return {"description": row.summary, "headers": {"x-request-id": _named()}, "content": kinds}
    found = _response(row.summary, by_type[repr(row.answer)])
    if row.body is not None:
        found["headers"]["x-baton-ignored"] = _HEADER | {"description": "fields of the body that changed nothing"}
    if row.event is not None and row.lines:
        found["content"][_LINES] = {"schema": {"anyOf": [by_type[repr(row.event)], by_type[repr(row.error)]]}}
    elif row.event is not None:
        found["content"][_SSE] = {"schema": _event(row, by_type)}
    return found


def _event(row: ApiEndpoint, by_type: dict[str, Json]) -> Json:
    """One server-sent event as parsed: JSON of the row's type, an error in mid-stream, or the end."""
    kinds = {"anyOf": [by_type[repr(row.event)], by_type[repr(row.error)]]}
    coded = {"type": "string", "contentMediaType": _JSON, "contentSchema": kinds}
    found: Json = {"type": "object", "required": ["data"], "properties": {"data": coded}, "description": "an event"}
    if row.done:
        found["properties"] = {"data": {"anyOf": [coded, {"const": "[DONE]"}]}}
        found["description"] = "an event; `data: [DONE]` is the last one"
    return found


def _response(description: str, schema: Json) -> Json:
    return {
        "description": description,
        "headers": {"x-request-id": _named()},
        "content": {_JSON: {"schema": schema}},
    }


def _named() -> Json:
    return _HEADER | {"required": True, "description": "names the request in logs, traces and errors"}


def _error(status: int, reasons: list[str], schema: Json) -> Json:
    found = _response(", ".join(reasons), schema)
    found["headers"] |= {
        "x-error-reason": _HEADER | {"required": True, "description": "`reason` of the error"},
        "x-should-retry": _FLAG | {"required": True, "description": "whether the same request may succeed later"},
    }
    if status in (429, 503):
        found["headers"] |= {"retry-after": _HEADER, "retry-after-ms": _HEADER}
    if status >= 429:
        found["headers"]["x-baton-tokens-spent"] = _HEADER
    return found


def _errors(row: ApiEndpoint, *, guarded: bool) -> dict[int, list[str]]:
    """Status -> reasons of the errors that this endpoint may answer with. `guarded`: it asks for a key."""
    found: dict[int, list[str]] = {}
    kinds = [kind for kind in _closed_list() if kind not in _KEYS]
    if row.body is None:
        kinds = [errors.Internal, errors.InvalidRequest]
    if guarded:
        kinds.append(errors.Unauthenticated)
        if shows_operations(row.path):
            kinds.append(errors.Forbidden)
        if row.body is not None:
            kinds.append(errors.RateLimited)
    for kind in kinds:
        if kind.http_status not in _NEVER:
            found.setdefault(kind.http_status, []).append(kind.reason)
    for status, reason in (_CONNECTION | _OWN | ({404: row.unknown} if row.unknown else {})).items():
        if reason not in found.setdefault(status, []):
            found[status].append(reason)
    return found


def _closed_list() -> list[type[errors.BatonError]]:
    """All errors, wherever they stand in the list."""
    found, left = list[type[errors.BatonError]](), [errors.BatonError]
    while left:
        kinds = left.pop().__subclasses__()
        found += kinds
        left += kinds
    return found
