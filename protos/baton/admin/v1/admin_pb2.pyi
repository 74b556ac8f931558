from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LoadAdapterRequest(_message.Message):
    __slots__ = ("name", "folder", "model", "replace")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    name: str
    folder: str
    model: str
    replace: bool
    def __init__(self, name: _Optional[str] = ..., folder: _Optional[str] = ..., model: _Optional[str] = ..., replace: bool = ...) -> None: ...

class LoadAdapterResponse(_message.Message):
    __slots__ = ("adapter",)
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    adapter: Adapter
    def __init__(self, adapter: _Optional[_Union[Adapter, _Mapping]] = ...) -> None: ...

class UnloadAdapterRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class UnloadAdapterResponse(_message.Message):
    __slots__ = ("adapter",)
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    adapter: Adapter
    def __init__(self, adapter: _Optional[_Union[Adapter, _Mapping]] = ...) -> None: ...

class Adapter(_message.Message):
    __slots__ = ("name", "model", "hash")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    name: str
    model: str
    hash: str
    def __init__(self, name: _Optional[str] = ..., model: _Optional[str] = ..., hash: _Optional[str] = ...) -> None: ...

class WatchLoadRequest(_message.Message):
    __slots__ = ("interval_seconds",)
    INTERVAL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    interval_seconds: float
    def __init__(self, interval_seconds: _Optional[float] = ...) -> None: ...

class WatchLoadResponse(_message.Message):
    __slots__ = ("waiting", "running", "prefill_workers", "decode_workers", "queued_tokens", "free_pages", "total_pages", "tokens_per_second")
    WAITING_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    PREFILL_WORKERS_FIELD_NUMBER: _ClassVar[int]
    DECODE_WORKERS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FREE_PAGES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_PAGES_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    waiting: int
    running: int
    prefill_workers: int
    decode_workers: int
    queued_tokens: int
    free_pages: int
    total_pages: int
    tokens_per_second: float
    def __init__(self, waiting: _Optional[int] = ..., running: _Optional[int] = ..., prefill_workers: _Optional[int] = ..., decode_workers: _Optional[int] = ..., queued_tokens: _Optional[int] = ..., free_pages: _Optional[int] = ..., total_pages: _Optional[int] = ..., tokens_per_second: _Optional[float] = ...) -> None: ...

class WatchTopologyRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchTopologyResponse(_message.Message):
    __slots__ = ("snapshot", "attached", "draining", "left")
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    snapshot: Snapshot
    attached: Worker
    draining: Worker
    left: Worker
    def __init__(self, snapshot: _Optional[_Union[Snapshot, _Mapping]] = ..., attached: _Optional[_Union[Worker, _Mapping]] = ..., draining: _Optional[_Union[Worker, _Mapping]] = ..., left: _Optional[_Union[Worker, _Mapping]] = ...) -> None: ...

class Snapshot(_message.Message):
    __slots__ = ("workers",)
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[Worker]
    def __init__(self, workers: _Optional[_Iterable[_Union[Worker, _Mapping]]] = ...) -> None: ...

class Worker(_message.Message):
    __slots__ = ("name", "tier", "address", "incarnation", "draining", "numerics_class", "fingerprint", "model_hash", "waiting", "running", "model")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_CLASS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    MODEL_HASH_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    name: str
    tier: str
    address: str
    incarnation: int
    draining: bool
    numerics_class: str
    fingerprint: str
    model_hash: str
    waiting: int
    running: int
    model: str
    def __init__(self, name: _Optional[str] = ..., tier: _Optional[str] = ..., address: _Optional[str] = ..., incarnation: _Optional[int] = ..., draining: bool = ..., numerics_class: _Optional[str] = ..., fingerprint: _Optional[str] = ..., model_hash: _Optional[str] = ..., waiting: _Optional[int] = ..., running: _Optional[int] = ..., model: _Optional[str] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("worker", "hand_over_seconds")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    HAND_OVER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    hand_over_seconds: float
    def __init__(self, worker: _Optional[str] = ..., hand_over_seconds: _Optional[float] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("worker",)
    WORKER_FIELD_NUMBER: _ClassVar[int]
    worker: Worker
    def __init__(self, worker: _Optional[_Union[Worker, _Mapping]] = ...) -> None: ...

class PagesRequest(_message.Message):
    __slots__ = ("worker", "first", "count")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    worker: str
    first: int
    count: int
    def __init__(self, worker: _Optional[str] = ..., first: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class PagesResponse(_message.Message):
    __slots__ = ("workers", "alarms")
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    ALARMS_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerPages]
    alarms: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, workers: _Optional[_Iterable[_Union[WorkerPages, _Mapping]]] = ..., alarms: _Optional[_Iterable[str]] = ...) -> None: ...

class WorkerPages(_message.Message):
    __slots__ = ("worker", "id", "tier", "answered", "states", "holders", "faults", "runs")
    class StatesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    FAULTS_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    id: str
    tier: str
    answered: bool
    states: _containers.ScalarMap[str, int]
    holders: _containers.RepeatedCompositeFieldContainer[PageHolder]
    faults: _containers.RepeatedScalarFieldContainer[str]
    runs: _containers.RepeatedCompositeFieldContainer[PageRun]
    def __init__(self, worker: _Optional[str] = ..., id: _Optional[str] = ..., tier: _Optional[str] = ..., answered: bool = ..., states: _Optional[_Mapping[str, int]] = ..., holders: _Optional[_Iterable[_Union[PageHolder, _Mapping]]] = ..., faults: _Optional[_Iterable[str]] = ..., runs: _Optional[_Iterable[_Union[PageRun, _Mapping]]] = ...) -> None: ...

class PageHolder(_message.Message):
    __slots__ = ("what", "state", "pages", "request", "request_id", "attempt", "writer", "why", "seconds")
    WHAT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    what: str
    state: str
    pages: int
    request: str
    request_id: str
    attempt: int
    writer: str
    why: str
    seconds: float
    def __init__(self, what: _Optional[str] = ..., state: _Optional[str] = ..., pages: _Optional[int] = ..., request: _Optional[str] = ..., request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., writer: _Optional[str] = ..., why: _Optional[str] = ..., seconds: _Optional[float] = ...) -> None: ...

class PageRun(_message.Message):
    __slots__ = ("pages", "state", "holders")
    PAGES_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    pages: int
    state: str
    holders: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, pages: _Optional[int] = ..., state: _Optional[str] = ..., holders: _Optional[_Iterable[int]] = ...) -> None: ...
