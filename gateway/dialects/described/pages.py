"""The pages of the API about itself as msgspec types: models, health, load, version, the last requests.

Those of the gateway itself are built of them; pages of the mesh are built elsewhere, and tests hold them together."""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType


class ModelCard(Struct):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str  # the model whose workers answer: another one's name where this is an alias
    max_model_len: int
    parent: str | UnsetType = UNSET  # the model that an adapter belongs to


class ModelCards(Struct):
    object: Literal["list"]
    data: list[ModelCard]


class ModelHealth(Struct):
    status: str
    prefill: int
    decode: int


class SilentWorkerHealth(Struct):
    name: str
    tier: str
    address: str
    silent_seconds: float  # since its last message
    attached: bool  # false: its lease has run out, and its requests have gone on elsewhere


class HealthAnswer(Struct, kw_only=True):
    """The number of attached workers of each tier, and whether a request can be served."""

    status: str
    prefill: int
    decode: int
    models: dict[str, ModelHealth] | UnsetType = UNSET  # where several are served
    refused_workers: list[str] | UnsetType = UNSET  # reasons for which workers are not taken
    silent_workers: list[SilentWorkerHealth] | UnsetType = UNSET  # that stand still, until they are back
    alarms: list[str] | UnsetType = UNSET  # pages of workers that a person must look at
    processes: int | UnsetType = UNSET  # that answered, of a gateway of several
    silent_processes: list[int] | UnsetType = UNSET  # processes, of several, that are there and have not answered


class LoadAnswer(Struct):
    """Numbers of accepted choices."""

    server_load: int
    running: int
    waiting: int  # for their first token


class VersionAnswer(Struct):
    version: str


class ServerProps(Struct):
    default_generation_settings: dict[str, int]
    total_slots: int
    model_alias: str
    model_path: str  # empty: clients have no business with the folder
    chat_template: str
    build_info: str


class ServerSlot(Struct):
    id: int
    n_ctx: int
    is_processing: bool


class ServerInfo(Struct):
    version: str
    models: list[ModelCard]
    workers: dict[str, int]  # by tier
    running: int
    waiting: int


class RequestSummary(Struct, kw_only=True):
    """One request that the gateway remembers, without its prompt and its output."""

    request_id: str
    trace_id: str
    model: str
    tenant: str  # empty: the request needed no key
    path: str
    status: str
    error: str
    message: str
    http_status: int
    started_at: float
    seconds: float
    prompt_tokens: int
    completion_tokens: int
    ttft_seconds: float | None
    complete: bool
    same_id: list[str] | UnsetType = UNSET
    spans: list[dict[str, Any]] | UnsetType = UNSET


class LastRequests(Struct):
    requests: list[RequestSummary]


class PageHolderEntry(Struct):
    """A request, a step or a writer that holds pages of a worker."""

    what: str
    state: Literal["in_use", "landing", "quarantined"]
    pages: int
    request: str | None
    request_id: str | None  # where the request is one of the gateway process that answers
    attempt: int
    writer: str | None  # the prefill worker that may write the pages
    why: str
    seconds: float | None


class WorkerPagesEntry(Struct, kw_only=True):
    worker: str
    id: str
    tier: str
    address: str
    model: str
    page_tokens: int
    answered: bool
    pages: int | UnsetType = UNSET
    states: dict[str, int] | UnsetType = UNSET
    holders: list[PageHolderEntry] | UnsetType = UNSET
    faults: list[str] | UnsetType = UNSET  # pages that do not add up
    map: str | UnsetType = UNSET  # pages of a cell, a colon, runs of cells: free, cached, used, landing, quarantined
    first: int | UnsetType = UNSET
    runs: list[tuple[int, str, list[int]]] | UnsetType = UNSET  # pages, their state, indexes of their holders


class PagesAnswer(Struct):
    workers: list[WorkerPagesEntry]
    alarms: list[str]
