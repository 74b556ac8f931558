from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class End(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    END_UNSPECIFIED: _ClassVar[End]
    END_NONE: _ClassVar[End]
    END_STOP: _ClassVar[End]
    END_LENGTH: _ClassVar[End]
END_UNSPECIFIED: End
END_NONE: End
END_STOP: End
END_LENGTH: End

class SessionRequest(_message.Message):
    __slots__ = ("heartbeat", "hello", "ready", "written", "computing", "commit", "quiet")
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    COMPUTING_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    QUIET_FIELD_NUMBER: _ClassVar[int]
    heartbeat: Heartbeat
    hello: KvHello
    ready: Ready
    written: Written
    computing: Computing
    commit: Commit
    quiet: Quiet
    def __init__(self, heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., hello: _Optional[_Union[KvHello, _Mapping]] = ..., ready: _Optional[_Union[Ready, _Mapping]] = ..., written: _Optional[_Union[Written, _Mapping]] = ..., computing: _Optional[_Union[Computing, _Mapping]] = ..., commit: _Optional[_Union[Commit, _Mapping]] = ..., quiet: _Optional[_Union[Quiet, _Mapping]] = ...) -> None: ...

class SessionResponse(_message.Message):
    __slots__ = ("heartbeat", "hello", "landing", "later", "resend", "landed", "abort")
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    LANDING_FIELD_NUMBER: _ClassVar[int]
    LATER_FIELD_NUMBER: _ClassVar[int]
    RESEND_FIELD_NUMBER: _ClassVar[int]
    LANDED_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    heartbeat: Heartbeat
    hello: KvHello
    landing: Landing
    later: Later
    resend: Resend
    landed: Landed
    abort: Abort
    def __init__(self, heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., hello: _Optional[_Union[KvHello, _Mapping]] = ..., landing: _Optional[_Union[Landing, _Mapping]] = ..., later: _Optional[_Union[Later, _Mapping]] = ..., resend: _Optional[_Union[Resend, _Mapping]] = ..., landed: _Optional[_Union[Landed, _Mapping]] = ..., abort: _Optional[_Union[Abort, _Mapping]] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PageSegment(_message.Message):
    __slots__ = ("kind", "content", "layers", "layer_bytes", "tiles", "dtype", "heads", "first_head", "shard_heads", "head_dim")
    KIND_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    LAYER_BYTES_FIELD_NUMBER: _ClassVar[int]
    TILES_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    FIRST_HEAD_FIELD_NUMBER: _ClassVar[int]
    SHARD_HEADS_FIELD_NUMBER: _ClassVar[int]
    HEAD_DIM_FIELD_NUMBER: _ClassVar[int]
    kind: str
    content: str
    layers: int
    layer_bytes: int
    tiles: str
    dtype: str
    heads: int
    first_head: int
    shard_heads: int
    head_dim: int
    def __init__(self, kind: _Optional[str] = ..., content: _Optional[str] = ..., layers: _Optional[int] = ..., layer_bytes: _Optional[int] = ..., tiles: _Optional[str] = ..., dtype: _Optional[str] = ..., heads: _Optional[int] = ..., first_head: _Optional[int] = ..., shard_heads: _Optional[int] = ..., head_dim: _Optional[int] = ...) -> None: ...

class PageShape(_message.Message):
    __slots__ = ("page_tokens", "segments")
    PAGE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    page_tokens: int
    segments: _containers.RepeatedCompositeFieldContainer[PageSegment]
    def __init__(self, page_tokens: _Optional[int] = ..., segments: _Optional[_Iterable[_Union[PageSegment, _Mapping]]] = ...) -> None: ...

class KvHello(_message.Message):
    __slots__ = ("incarnation", "numerics", "shape", "host", "uid", "pid", "transports", "chosen", "why", "handle", "secret")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    TRANSPORTS_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    numerics: str
    shape: PageShape
    host: str
    uid: int
    pid: int
    transports: _containers.RepeatedScalarFieldContainer[str]
    chosen: str
    why: str
    handle: bytes
    secret: bytes
    def __init__(self, incarnation: _Optional[int] = ..., numerics: _Optional[str] = ..., shape: _Optional[_Union[PageShape, _Mapping]] = ..., host: _Optional[str] = ..., uid: _Optional[int] = ..., pid: _Optional[int] = ..., transports: _Optional[_Iterable[str]] = ..., chosen: _Optional[str] = ..., why: _Optional[str] = ..., handle: _Optional[bytes] = ..., secret: _Optional[bytes] = ...) -> None: ...

class Token(_message.Message):
    __slots__ = ("position", "token", "logprob", "top_ids", "top_logprobs", "end", "drafted", "accepted")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    position: int
    token: int
    logprob: float
    top_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    end: End
    drafted: int
    accepted: bool
    def __init__(self, position: _Optional[int] = ..., token: _Optional[int] = ..., logprob: _Optional[float] = ..., top_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ..., end: _Optional[_Union[End, str]] = ..., drafted: _Optional[int] = ..., accepted: bool = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = ("ticket",)
    TICKET_FIELD_NUMBER: _ClassVar[int]
    ticket: bytes
    def __init__(self, ticket: _Optional[bytes] = ...) -> None: ...

class Landing(_message.Message):
    __slots__ = ("ticket", "first_page", "pages", "first_windowed")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    FIRST_PAGE_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    FIRST_WINDOWED_FIELD_NUMBER: _ClassVar[int]
    ticket: bytes
    first_page: int
    pages: _containers.RepeatedScalarFieldContainer[int]
    first_windowed: int
    def __init__(self, ticket: _Optional[bytes] = ..., first_page: _Optional[int] = ..., pages: _Optional[_Iterable[int]] = ..., first_windowed: _Optional[int] = ...) -> None: ...

class Later(_message.Message):
    __slots__ = ("ticket",)
    TICKET_FIELD_NUMBER: _ClassVar[int]
    ticket: bytes
    def __init__(self, ticket: _Optional[bytes] = ...) -> None: ...

class Written(_message.Message):
    __slots__ = ("ticket", "first_layer", "layers", "round", "pages", "checksums")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    FIRST_LAYER_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    ticket: bytes
    first_layer: int
    layers: int
    round: int
    pages: _containers.RepeatedScalarFieldContainer[int]
    checksums: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ticket: _Optional[bytes] = ..., first_layer: _Optional[int] = ..., layers: _Optional[int] = ..., round: _Optional[int] = ..., pages: _Optional[_Iterable[int]] = ..., checksums: _Optional[_Iterable[int]] = ...) -> None: ...

class Computing(_message.Message):
    __slots__ = ("ticket", "longest_step_ms")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    LONGEST_STEP_MS_FIELD_NUMBER: _ClassVar[int]
    ticket: bytes
    longest_step_ms: int
    def __init__(self, ticket: _Optional[bytes] = ..., longest_step_ms: _Optional[int] = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ("ticket", "round", "first")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    ticket: bytes
    round: int
    first: Token
    def __init__(self, ticket: _Optional[bytes] = ..., round: _Optional[int] = ..., first: _Optional[_Union[Token, _Mapping]] = ...) -> None: ...

class Resend(_message.Message):
    __slots__ = ("ticket", "round", "first_layer", "layers", "pages")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    FIRST_LAYER_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    ticket: bytes
    round: int
    first_layer: int
    layers: int
    pages: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ticket: _Optional[bytes] = ..., round: _Optional[int] = ..., first_layer: _Optional[int] = ..., layers: _Optional[int] = ..., pages: _Optional[_Iterable[int]] = ...) -> None: ...

class Landed(_message.Message):
    __slots__ = ("ticket",)
    TICKET_FIELD_NUMBER: _ClassVar[int]
    ticket: bytes
    def __init__(self, ticket: _Optional[bytes] = ...) -> None: ...

class Abort(_message.Message):
    __slots__ = ("ticket",)
    TICKET_FIELD_NUMBER: _ClassVar[int]
    ticket: bytes
    def __init__(self, ticket: _Optional[bytes] = ...) -> None: ...

class Quiet(_message.Message):
    __slots__ = ("ticket", "incarnation")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ticket: bytes
    incarnation: int
    def __init__(self, ticket: _Optional[bytes] = ..., incarnation: _Optional[int] = ...) -> None: ...
