"""Rows of the table of endpoints for what the gateway keeps for its clients: responses, files and batches."""

from gateway.batches.records import BatchRecord, FileRecord
from gateway.dialects.described.batches import BatchPage, BatchRequest, DeletedFile, FileForm, FilePage
from gateway.dialects.described.responses import DeletedResponse, InputItems, ResponseAnswer
from gateway.dialects.endpoints.endpoint import BYTES, ApiEndpoint
from gateway.tenants.tenants import Work

_LISTED = {
    "limit": {"type": "integer", "minimum": 1},
    "after": {"type": "string", "description": "id of the entry behind which the list begins"},
}

KEPT = (
    ApiEndpoint("/v1/responses/{id}", "A stored response", ResponseAnswer, unknown="NOT_FOUND"),
    ApiEndpoint("/v1/responses/{id}", "Removes a stored response", DeletedResponse, verb="delete", unknown="NOT_FOUND"),
    ApiEndpoint(
        "/v1/responses/{id}/cancel",
        "Ends a response that is generated in the background",
        ResponseAnswer,
        verb="post",
        unknown="NOT_FOUND",
    ),
    ApiEndpoint(
        "/v1/responses/{id}/input_items",
        "The items before the output of a stored response",
        InputItems,
        query={
            "limit": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20},
            "order": {"enum": ["asc", "desc"], "default": "desc"},
            "after": {"type": "string", "description": "id of the item behind which the list begins"},
        },
        unknown="NOT_FOUND",
    ),
    ApiEndpoint(
        "/v1/files",
        "Stores a file, for instance the requests of a batch",
        FileRecord,
        body=FileForm,
        form=True,
        needs=("file", "purpose"),
        work=Work.COMPUTES,
    ),
    ApiEndpoint(
        "/v1/files",
        "The stored files",
        FilePage,
        verb="get",
        query={**_LISTED, "order": {"enum": ["asc", "desc"], "default": "desc"}, "purpose": {"type": "string"}},
    ),
    ApiEndpoint("/v1/files/{id}", "A stored file", FileRecord, unknown="NOT_FOUND"),
    ApiEndpoint("/v1/files/{id}", "Removes a stored file", DeletedFile, verb="delete", unknown="NOT_FOUND"),
    ApiEndpoint("/v1/files/{id}/content", "The content of a stored file", BYTES, unknown="NOT_FOUND"),
    ApiEndpoint(
        "/v1/batches",
        "Begins a batch: the requests of a file are answered when there is room",
        BatchRecord,
        body=BatchRequest,
        needs=("input_file_id", "endpoint", "completion_window"),
        work=Work.COMPUTES,
    ),
    ApiEndpoint("/v1/batches", "The batches", BatchPage, verb="get", query=_LISTED),
    ApiEndpoint("/v1/batches/{id}", "A batch", BatchRecord, unknown="NOT_FOUND"),
    ApiEndpoint("/v1/batches/{id}/cancel", "Ends a batch", BatchRecord, verb="post", unknown="NOT_FOUND"),
)
