"""A configuration is made of dictionaries, lists and scalars. It is written as JSON below a comment, and Envoy reads it
as YAML."""

import json
from textwrap import indent
from typing import Any


def typed(kind: str, **fields: Any) -> dict[str, Any]:
    """A message of Envoy's that says its own type, for instance `extensions.filters.http.router.v3.Router`."""
    return {"@type": f"type.googleapis.com/envoy.{kind}", **fields}


def extension(name: str, kind: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "typed_config": typed(f"extensions.{kind}", **fields)}


def written(document: dict[str, Any], header: str) -> str:
    return f"{indent(header, '# ')}\n{json.dumps(document, indent=2, ensure_ascii=False)}\n"
