"""`/docs`: the API's description as one page for people. It has no script and loads nothing.

Every text is escaped, and the policy allows this page's own style and nothing else."""

import hashlib
from base64 import b64encode
from collections.abc import Iterator
from html import escape
from typing import Any

Json = dict[str, Any]
STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h1 { margin-bottom: 0 } h3 { margin: 1rem 0 .25rem }
details { border: 1px solid #8886; border-radius: .5rem; margin: .5rem 0; padding: .5rem 1rem }
summary { cursor: pointer } code, pre { font-family: ui-monospace, monospace; font-size: .9em }
summary b { display: inline-block; width: 3.5rem }
table { border-collapse: collapse; width: 100% }
td, th { text-align: left; vertical-align: top; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid #8883 }
pre { background: #8882; border-radius: .5rem; padding: .75rem; overflow-x: auto }
"""
_DIGEST = b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
POLICY = f"default-src 'none'; style-src 'sha256-{_DIGEST}'; base-uri 'none'; frame-ancestors 'none'"
_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "pattern")
_DEEPEST = 3  # objects within each other whose members are listed


def page(document: Json) -> bytes:
    info, schemas = document["info"], document["components"]["schemas"]
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>Baton API</title>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<style>{STYLE}</style></head><body><h1>Baton</h1><p>{escape(info['summary'])}. Version ",
        f"{escape(info['version'])}. For programs: <a href='/openapi.json'>/openapi.json</a>.</p>",
    ]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            parts += _operation(path, method, operation, schemas)
    parts.append("</body></html>\n")
    return "".join(parts).encode()


def _operation(path: str, method: str, operation: Json, schemas: Json) -> Iterator[str]:
    title = f"<b>{method.upper()}</b> <code>{escape(path)}</code> {escape(operation['summary'])}"
    yield f"<details id='{operation['operationId']}'><summary>{title}</summary>"
    if operation["parameters"]:
        yield "<h3>Parameters</h3><table>"
        for each in operation["parameters"]:
            notes = [each["schema"].get("description", ""), *_limits(each["schema"])]
            yield _row(each["name"], f"{each['in']}: {_type(each['schema'])}", "; ".join(filter(None, notes)))
        yield "</table>"
    if "requestBody" in operation:
        yield "<h3>Body</h3>"
        (body,) = operation["requestBody"]["content"].values()
        yield from _members(body["schema"], schemas)
    yield "<h3>Answers</h3><table>"
    for status, response in operation["responses"].items():
        yield _row(status, ", ".join(response["content"]), response["description"])
    yield "</table>"
    for kind, content in operation["responses"]["200"]["content"].items():
        yield f"<h3>200 as {escape(kind)}</h3>"
        data = content["schema"].get("properties", {}).get("data", {})
        coded = next((each for each in data.get("anyOf", [data]) if "contentSchema" in each), None)
        yield from _members(coded["contentSchema"]["anyOf"][0] if coded else content["schema"], schemas)
    yield "</details>"


def _members(schema: Json, schemas: Json) -> Iterator[str]:
    yield "<table><tr><th>field</th><th>type</th><th></th></tr>"
    yield from _rows(schema, schemas, "", 0)
    yield "</table>"


def _rows(schema: Json, schemas: Json, path: str, depth: int) -> Iterator[str]:
    """A row for each member, and for the members of objects within."""
    for inner in _objects(schema, schemas):
        needed = inner.get("required", ())
        for name, value in inner.get("properties", {}).items():
            notes = ["required"] if name in needed and not path else []
            notes += [value["description"]] if "description" in value else []
            notes += _limits(value)
            yield _row(f"{path}{name}", _type(value), "; ".join(notes))
            if depth < _DEEPEST and len(path) < 80:
                yield from _rows(value, schemas, f"{path}{name}.", depth + 1)


def _objects(schema: Json, schemas: Json) -> Iterator[Json]:
    """The objects that a value is, may be, or holds as items."""
    if "$ref" in schema:
        yield from _objects(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    elif "properties" in schema:
        yield schema
    else:
        for each in schema.get("anyOf", ()):
            yield from _objects(each, schemas)
    if isinstance(schema.get("items"), dict):
        yield from _objects(schema["items"], schemas)


def _type(schema: Json) -> str:
    if "anyOf" in schema and "type" not in schema:
        return " or ".join(dict.fromkeys(_type(each) for each in schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return " or ".join(str(value) for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}" if isinstance(schema.get("items"), dict) else "list"
    if "$ref" in schema:
        return "object"
    kind = schema.get("type", "any")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _limits(schema: Json) -> list[str]:
    branches = [schema, *schema.get("anyOf", ())]
    return [f"{name} {branch[name]}" for branch in branches for name in _BOUNDS if name in branch]


def _row(*cells: str) -> str:
    first, *rest = cells
    return f"<tr><td><code>{escape(first)}</code></td>" + "".join(f"<td>{escape(c)}</td>" for c in rest) + "</tr>"
