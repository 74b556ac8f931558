"""Checks JSON values against the kind of schemas that the corpus uses. Unknown keywords in a schema are an error."""

from typing import Any

_TYPES: dict[str, Any] = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
_KNOWN = {
    "type",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "enum",
    "minimum",
    "maximum",
    "description",
}


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """True: the value fits. A key that the schema does not name never fits: a made-up key is a mistake."""
    if unknown := schema.keys() - _KNOWN:
        raise ValueError(f"schema: {sorted(unknown)} are not checked here")
    kind = schema["type"]
    if not isinstance(value, _TYPES[kind]) or (kind == "integer" and isinstance(value, bool)):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if kind == "integer":
        return bool(schema.get("minimum", value) <= value <= schema.get("maximum", value))
    if kind == "array":
        return all(fits(item, schema["items"]) for item in value)
    if kind == "object":
        properties = schema["properties"]
        named = value.keys() <= properties.keys() and value.keys() >= set(schema.get("required", ()))
        return named and all(fits(item, properties[name]) for name, item in value.items())
    return True
