"""Rows of the table of endpoints for what operators order about adapters, in vLLM's dialect.

They have no summary, so they are no part of the API's description: docs/adapters.md describes them."""

from gateway.dialects.described.adapters import AdapterAnswer
from gateway.dialects.endpoints.endpoint import ApiEndpoint
from gateway.dialects.native.types import LoadAdapterBody, UnloadAdapterBody
from gateway.tenants.tenants import Work

ADAPTER_ORDERS = (
    ApiEndpoint(
        "/v1/load_lora_adapter",
        answer=AdapterAnswer,
        body=LoadAdapterBody,
        needs=("lora_name", "lora_path"),
        work=Work.OPERATES,
    ),
    ApiEndpoint(
        "/v1/unload_lora_adapter",
        answer=AdapterAnswer,
        body=UnloadAdapterBody,
        needs=("lora_name",),
        work=Work.OPERATES,
        unknown="UNKNOWN_MODEL",
    ),
)
