"""The bodies and answers of `/v1/files` and `/v1/batches` as msgspec types; their objects stand in
gateway/batches/records.py."""

from typing import Annotated, Any, Literal

import msgspec

from gateway.batches.records import BatchRecord, FileRecord


class FileForm(msgspec.Struct, kw_only=True):
    """The parts of a form; `file` is the content of a file."""

    file: Annotated[str, msgspec.Meta(extra_json_schema={"contentMediaType": "application/octet-stream"})] | None = None
    purpose: str | None = None


class FilePage(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[FileRecord]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedFile(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


class BatchRequest(msgspec.Struct, kw_only=True):
    input_file_id: str | None = None
    endpoint: str | None = None
    completion_window: str | None = None
    metadata: dict[str, str] | None = None
    output_expires_after: dict[str, Any] | None = None  # without effect: files have one age


class BatchPage(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[BatchRecord]
    first_id: str | None
    last_id: str | None
    has_more: bool
