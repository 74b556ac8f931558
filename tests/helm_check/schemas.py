"""Validates rendered documents: Kubernetes' own objects against the schemas of a version, custom resources against the
fields that this repository wrote down from their published definitions (deploy/chart/tests/crds.yaml)."""

from functools import cache
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

from tests.helm_check.chart import CHART, Document

VERSIONS = ("1.32", "1.34", "1.37")  # versions of Kubernetes


@cache
def custom() -> dict[str, Any]:
    """apiVersion/kind -> JSON schema of a custom resource."""
    schemas: dict[str, Any] = yaml.safe_load((CHART / "tests/crds.yaml").read_text())
    return schemas


def problem(document: Document, version: str) -> str:
    """Why a cluster of this version would refuse the document; empty when it would not."""
    name = f"{document.get('kind')} {document.get('metadata', {}).get('name')}"
    try:
        if (schema := custom().get(f"{document['apiVersion']}/{document['kind']}")) is not None:
            jsonschema.validate(document, schema)
        else:
            kubernetes_validate.validate(document, version, strict=True)
    except jsonschema.ValidationError as error:
        return f"{name}: {'.'.join(map(str, error.absolute_path))}: {error.message}"
    except kubernetes_validate.ValidationError as error:
        return f"{name}: {'.'.join(map(str, error.path))}: {error.message}"
    except kubernetes_validate.SchemaNotFoundError as error:
        return f"{name}: {error.message}"
    return ""
