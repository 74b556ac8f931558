from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Tier(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TIER_UNSPECIFIED: _ClassVar[Tier]
    TIER_PREFILL: _ClassVar[Tier]
    TIER_DECODE: _ClassVar[Tier]

class End(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    END_UNSPECIFIED: _ClassVar[End]
    END_NONE: _ClassVar[End]
    END_STOP: _ClassVar[End]
    END_LENGTH: _ClassVar[End]

class LostReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LOST_REASON_UNSPECIFIED: _ClassVar[LostReason]
    LOST_REASON_LANDING_LOST: _ClassVar[LostReason]
    LOST_REASON_NO_PROGRESS: _ClassVar[LostReason]
    LOST_REASON_PREEMPTED: _ClassVar[LostReason]
    LOST_REASON_CANNOT_PUSH: _ClassVar[LostReason]
    LOST_REASON_TOO_LARGE: _ClassVar[LostReason]
    LOST_REASON_GRAMMAR: _ClassVar[LostReason]
    LOST_REASON_LATE: _ClassVar[LostReason]
    LOST_REASON_ADAPTER: _ClassVar[LostReason]
    LOST_REASON_FAILED: _ClassVar[LostReason]

class FullKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FULL_KIND_UNSPECIFIED: _ClassVar[FullKind]
    FULL_KIND_EVER: _ClassVar[FullKind]
    FULL_KIND_NOW: _ClassVar[FullKind]

class Pooling(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    POOLING_UNSPECIFIED: _ClassVar[Pooling]
    POOLING_LAST: _ClassVar[Pooling]
    POOLING_MEAN: _ClassVar[Pooling]
TIER_UNSPECIFIED: Tier
TIER_PREFILL: Tier
TIER_DECODE: Tier
END_UNSPECIFIED: End
END_NONE: End
END_STOP: End
END_LENGTH: End
LOST_REASON_UNSPECIFIED: LostReason
LOST_REASON_LANDING_LOST: LostReason
LOST_REASON_NO_PROGRESS: LostReason
LOST_REASON_PREEMPTED: LostReason
LOST_REASON_CANNOT_PUSH: LostReason
LOST_REASON_TOO_LARGE: LostReason
LOST_REASON_GRAMMAR: LostReason
LOST_REASON_LATE: LostReason
LOST_REASON_ADAPTER: LostReason
LOST_REASON_FAILED: LostReason
FULL_KIND_UNSPECIFIED: FullKind
FULL_KIND_EVER: FullKind
FULL_KIND_NOW: FullKind
POOLING_UNSPECIFIED: Pooling
POOLING_LAST: Pooling
POOLING_MEAN: Pooling

class RegisterRequest(_message.Message):
    __slots__ = ("address", "tier", "incarnation")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    address: str
    tier: Tier
    incarnation: int
    def __init__(self, address: _Optional[str] = ..., tier: _Optional[_Union[Tier, str]] = ..., incarnation: _Optional[int] = ...) -> None: ...

class RegisterResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatsResponse(_message.Message):
    __slots__ = ("counts",)
    class CountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    counts: _containers.ScalarMap[str, int]
    def __init__(self, counts: _Optional[_Mapping[str, int]] = ...) -> None: ...

class AttachRequest(_message.Message):
    __slots__ = ("heartbeat", "prefill", "open", "cancel", "snapshot", "watch", "clock_probe", "drain", "examine", "refused", "page_query", "read_adapter", "assign_adapter", "abandon_adapter", "unload_adapter")
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    WATCH_FIELD_NUMBER: _ClassVar[int]
    CLOCK_PROBE_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    EXAMINE_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    PAGE_QUERY_FIELD_NUMBER: _ClassVar[int]
    READ_ADAPTER_FIELD_NUMBER: _ClassVar[int]
    ASSIGN_ADAPTER_FIELD_NUMBER: _ClassVar[int]
    ABANDON_ADAPTER_FIELD_NUMBER: _ClassVar[int]
    UNLOAD_ADAPTER_FIELD_NUMBER: _ClassVar[int]
    heartbeat: Heartbeat
    prefill: Prefill
    open: Open
    cancel: Cancel
    snapshot: Snapshot
    watch: Watch
    clock_probe: ClockProbe
    drain: Drain
    examine: Examine
    refused: Refused
    page_query: PageQuery
    read_adapter: ReadAdapter
    assign_adapter: AssignAdapter
    abandon_adapter: AbandonAdapter
    unload_adapter: UnloadAdapter
    def __init__(self, heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., prefill: _Optional[_Union[Prefill, _Mapping]] = ..., open: _Optional[_Union[Open, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., snapshot: _Optional[_Union[Snapshot, _Mapping]] = ..., watch: _Optional[_Union[Watch, _Mapping]] = ..., clock_probe: _Optional[_Union[ClockProbe, _Mapping]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ..., examine: _Optional[_Union[Examine, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., page_query: _Optional[_Union[PageQuery, _Mapping]] = ..., read_adapter: _Optional[_Union[ReadAdapter, _Mapping]] = ..., assign_adapter: _Optional[_Union[AssignAdapter, _Mapping]] = ..., abandon_adapter: _Optional[_Union[AbandonAdapter, _Mapping]] = ..., unload_adapter: _Optional[_Union[UnloadAdapter, _Mapping]] = ...) -> None: ...

class AttachResponse(_message.Message):
    __slots__ = ("heartbeat", "hello", "tokens", "lost", "full", "load", "prefix_change", "prefilled", "drain", "page_map", "clock_reading", "phases", "measures", "scored", "embedded", "begun", "long_step", "page_report", "adapters", "adapter_read")
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    PREFIX_CHANGE_FIELD_NUMBER: _ClassVar[int]
    PREFILLED_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    PAGE_MAP_FIELD_NUMBER: _ClassVar[int]
    CLOCK_READING_FIELD_NUMBER: _ClassVar[int]
    PHASES_FIELD_NUMBER: _ClassVar[int]
    MEASURES_FIELD_NUMBER: _ClassVar[int]
    SCORED_FIELD_NUMBER: _ClassVar[int]
    EMBEDDED_FIELD_NUMBER: _ClassVar[int]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    LONG_STEP_FIELD_NUMBER: _ClassVar[int]
    PAGE_REPORT_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_READ_FIELD_NUMBER: _ClassVar[int]
    heartbeat: Heartbeat
    hello: Hello
    tokens: Tokens
    lost: Lost
    full: Full
    load: Load
    prefix_change: PrefixChange
    prefilled: Prefilled
    drain: Drain
    page_map: PageMap
    clock_reading: ClockReading
    phases: Phases
    measures: Measures
    scored: Scored
    embedded: Embedded
    begun: Begun
    long_step: LongStep
    page_report: PageReport
    adapters: Adapters
    adapter_read: AdapterRead
    def __init__(self, heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., tokens: _Optional[_Union[Tokens, _Mapping]] = ..., lost: _Optional[_Union[Lost, _Mapping]] = ..., full: _Optional[_Union[Full, _Mapping]] = ..., load: _Optional[_Union[Load, _Mapping]] = ..., prefix_change: _Optional[_Union[PrefixChange, _Mapping]] = ..., prefilled: _Optional[_Union[Prefilled, _Mapping]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ..., page_map: _Optional[_Union[PageMap, _Mapping]] = ..., clock_reading: _Optional[_Union[ClockReading, _Mapping]] = ..., phases: _Optional[_Union[Phases, _Mapping]] = ..., measures: _Optional[_Union[Measures, _Mapping]] = ..., scored: _Optional[_Union[Scored, _Mapping]] = ..., embedded: _Optional[_Union[Embedded, _Mapping]] = ..., begun: _Optional[_Union[Begun, _Mapping]] = ..., long_step: _Optional[_Union[LongStep, _Mapping]] = ..., page_report: _Optional[_Union[PageReport, _Mapping]] = ..., adapters: _Optional[_Union[Adapters, _Mapping]] = ..., adapter_read: _Optional[_Union[AdapterRead, _Mapping]] = ...) -> None: ...

class Prefilled(_message.Message):
    __slots__ = ("ticket", "cached_tokens", "queued_seconds", "computed_seconds")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ticket: bytes
    cached_tokens: int
    queued_seconds: float
    computed_seconds: float
    def __init__(self, ticket: _Optional[bytes] = ..., cached_tokens: _Optional[int] = ..., queued_seconds: _Optional[float] = ..., computed_seconds: _Optional[float] = ...) -> None: ...

class Drain(_message.Message):
    __slots__ = ("grace_ms",)
    GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    grace_ms: int
    def __init__(self, grace_ms: _Optional[int] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ClockProbe(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class ClockReading(_message.Message):
    __slots__ = ("number", "seconds")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    number: int
    seconds: float
    def __init__(self, number: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class Phases(_message.Message):
    __slots__ = ("legs", "steps")
    LEGS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    legs: _containers.RepeatedCompositeFieldContainer[Leg]
    steps: _containers.RepeatedCompositeFieldContainer[Phase]
    def __init__(self, legs: _Optional[_Iterable[_Union[Leg, _Mapping]]] = ..., steps: _Optional[_Iterable[_Union[Phase, _Mapping]]] = ...) -> None: ...

class Leg(_message.Message):
    __slots__ = ("ticket", "start_seconds", "end_seconds", "phases")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    START_SECONDS_FIELD_NUMBER: _ClassVar[int]
    END_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PHASES_FIELD_NUMBER: _ClassVar[int]
    ticket: bytes
    start_seconds: float
    end_seconds: float
    phases: _containers.RepeatedCompositeFieldContainer[Phase]
    def __init__(self, ticket: _Optional[bytes] = ..., start_seconds: _Optional[float] = ..., end_seconds: _Optional[float] = ..., phases: _Optional[_Iterable[_Union[Phase, _Mapping]]] = ...) -> None: ...

class Phase(_message.Message):
    __slots__ = ("name", "start_seconds", "end_seconds", "attributes", "events", "links")
    NAME_FIELD_NUMBER: _ClassVar[int]
    START_SECONDS_FIELD_NUMBER: _ClassVar[int]
    END_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    name: str
    start_seconds: float
    end_seconds: float
    attributes: str
    events: _containers.RepeatedCompositeFieldContainer[PhaseEvent]
    links: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., start_seconds: _Optional[float] = ..., end_seconds: _Optional[float] = ..., attributes: _Optional[str] = ..., events: _Optional[_Iterable[_Union[PhaseEvent, _Mapping]]] = ..., links: _Optional[_Iterable[str]] = ...) -> None: ...

class PhaseEvent(_message.Message):
    __slots__ = ("name", "seconds", "attributes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    seconds: float
    attributes: str
    def __init__(self, name: _Optional[str] = ..., seconds: _Optional[float] = ..., attributes: _Optional[str] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "min_p", "seed", "choice", "max_tokens", "min_tokens", "stop_ids", "top_logprobs", "logprob_ids", "adjustments", "grammar")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_IDS_FIELD_NUMBER: _ClassVar[int]
    ADJUSTMENTS_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    choice: int
    max_tokens: int
    min_tokens: int
    stop_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: int
    logprob_ids: _containers.RepeatedScalarFieldContainer[int]
    adjustments: Adjustments
    grammar: str
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., seed: _Optional[int] = ..., choice: _Optional[int] = ..., max_tokens: _Optional[int] = ..., min_tokens: _Optional[int] = ..., stop_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[int] = ..., logprob_ids: _Optional[_Iterable[int]] = ..., adjustments: _Optional[_Union[Adjustments, _Mapping]] = ..., grammar: _Optional[str] = ...) -> None: ...

class Adjustments(_message.Message):
    __slots__ = ("biases", "repetition_penalty", "frequency_penalty", "presence_penalty", "allowed", "suppressed_ids", "bad_words", "no_repeat_ngram", "reasoning")
    BIASES_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    SUPPRESSED_IDS_FIELD_NUMBER: _ClassVar[int]
    BAD_WORDS_FIELD_NUMBER: _ClassVar[int]
    NO_REPEAT_NGRAM_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    biases: _containers.RepeatedCompositeFieldContainer[TokenBias]
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    allowed: bytes
    suppressed_ids: _containers.RepeatedScalarFieldContainer[int]
    bad_words: _containers.RepeatedCompositeFieldContainer[TokenSequence]
    no_repeat_ngram: int
    reasoning: ReasoningBudget
    def __init__(self, biases: _Optional[_Iterable[_Union[TokenBias, _Mapping]]] = ..., repetition_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., allowed: _Optional[bytes] = ..., suppressed_ids: _Optional[_Iterable[int]] = ..., bad_words: _Optional[_Iterable[_Union[TokenSequence, _Mapping]]] = ..., no_repeat_ngram: _Optional[int] = ..., reasoning: _Optional[_Union[ReasoningBudget, _Mapping]] = ...) -> None: ...

class ReasoningBudget(_message.Message):
    __slots__ = ("tokens", "begin", "end", "barred", "begun", "ends", "spaces")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    BARRED_FIELD_NUMBER: _ClassVar[int]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    SPACES_FIELD_NUMBER: _ClassVar[int]
    tokens: int
    begin: _containers.RepeatedCompositeFieldContainer[TokenSequence]
    end: _containers.RepeatedCompositeFieldContainer[TokenSequence]
    barred: int
    begun: bool
    ends: _containers.RepeatedScalarFieldContainer[int]
    spaces: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, tokens: _Optional[int] = ..., begin: _Optional[_Iterable[_Union[TokenSequence, _Mapping]]] = ..., end: _Optional[_Iterable[_Union[TokenSequence, _Mapping]]] = ..., barred: _Optional[int] = ..., begun: bool = ..., ends: _Optional[_Iterable[int]] = ..., spaces: _Optional[_Iterable[int]] = ...) -> None: ...

class TokenBias(_message.Message):
    __slots__ = ("token", "bias")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    BIAS_FIELD_NUMBER: _ClassVar[int]
    token: int
    bias: float
    def __init__(self, token: _Optional[int] = ..., bias: _Optional[float] = ...) -> None: ...

class TokenSequence(_message.Message):
    __slots__ = ("tokens",)
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, tokens: _Optional[_Iterable[int]] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("ticket", "prompt", "emitted", "sampling", "deadline_seconds", "traceparent", "salt", "priority", "start_seconds", "adapter")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    EMITTED_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    START_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    ticket: bytes
    prompt: _containers.RepeatedScalarFieldContainer[int]
    emitted: _containers.RepeatedScalarFieldContainer[int]
    sampling: Sampling
    deadline_seconds: float
    traceparent: str
    salt: bytes
    priority: int
    start_seconds: float
    adapter: str
    def __init__(self, ticket: _Optional[bytes] = ..., prompt: _Optional[_Iterable[int]] = ..., emitted: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., deadline_seconds: _Optional[float] = ..., traceparent: _Optional[str] = ..., salt: _Optional[bytes] = ..., priority: _Optional[int] = ..., start_seconds: _Optional[float] = ..., adapter: _Optional[str] = ...) -> None: ...

class Prefill(_message.Message):
    __slots__ = ("job", "decode_address", "decode_incarnation")
    JOB_FIELD_NUMBER: _ClassVar[int]
    DECODE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DECODE_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    job: Job
    decode_address: str
    decode_incarnation: int
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ..., decode_address: _Optional[str] = ..., decode_incarnation: _Optional[int] = ...) -> None: ...

class Examine(_message.Message):
    __slots__ = ("job", "examination")
    JOB_FIELD_NUMBER: _ClassVar[int]
    EXAMINATION_FIELD_NUMBER: _ClassVar[int]
    job: Job
    examination: Examination
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ..., examination: _Optional[_Union[Examination, _Mapping]] = ...) -> None: ...

class Examination(_message.Message):
    __slots__ = ("top", "pooling", "dimensions")
    TOP_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    top: int
    pooling: Pooling
    dimensions: int
    def __init__(self, top: _Optional[int] = ..., pooling: _Optional[_Union[Pooling, str]] = ..., dimensions: _Optional[int] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("job", "prefill_incarnation", "age_ms")
    JOB_FIELD_NUMBER: _ClassVar[int]
    PREFILL_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    job: Job
    prefill_incarnation: int
    age_ms: int
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ..., prefill_incarnation: _Optional[int] = ..., age_ms: _Optional[int] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("request", "attempt")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    request: int
    attempt: int
    def __init__(self, request: _Optional[int] = ..., attempt: _Optional[int] = ...) -> None: ...

class Snapshot(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Watch(_message.Message):
    __slots__ = ("seconds",)
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    seconds: int
    def __init__(self, seconds: _Optional[int] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("why",)
    WHY_FIELD_NUMBER: _ClassVar[int]
    why: str
    def __init__(self, why: _Optional[str] = ...) -> None: ...

class PageMap(_message.Message):
    __slots__ = ("pages_per_cell", "states", "lengths")
    PAGES_PER_CELL_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    pages_per_cell: int
    states: bytes
    lengths: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, pages_per_cell: _Optional[int] = ..., states: _Optional[bytes] = ..., lengths: _Optional[_Iterable[int]] = ...) -> None: ...

class PageQuery(_message.Message):
    __slots__ = ("number", "first", "count")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    number: int
    first: int
    count: int
    def __init__(self, number: _Optional[int] = ..., first: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class PageHolder(_message.Message):
    __slots__ = ("what", "state", "request", "attempt", "writer", "why", "seconds", "pages")
    WHAT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    what: str
    state: str
    request: int
    attempt: int
    writer: int
    why: str
    seconds: float
    pages: int
    def __init__(self, what: _Optional[str] = ..., state: _Optional[str] = ..., request: _Optional[int] = ..., attempt: _Optional[int] = ..., writer: _Optional[int] = ..., why: _Optional[str] = ..., seconds: _Optional[float] = ..., pages: _Optional[int] = ...) -> None: ...

class PageReport(_message.Message):
    __slots__ = ("number", "free", "cached", "in_use", "landing", "quarantined", "holders", "faults", "page_map", "lengths", "states", "sharers", "held_by")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    CACHED_FIELD_NUMBER: _ClassVar[int]
    IN_USE_FIELD_NUMBER: _ClassVar[int]
    LANDING_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    FAULTS_FIELD_NUMBER: _ClassVar[int]
    PAGE_MAP_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    SHARERS_FIELD_NUMBER: _ClassVar[int]
    HELD_BY_FIELD_NUMBER: _ClassVar[int]
    number: int
    free: int
    cached: int
    in_use: int
    landing: int
    quarantined: int
    holders: _containers.RepeatedCompositeFieldContainer[PageHolder]
    faults: _containers.RepeatedScalarFieldContainer[str]
    page_map: PageMap
    lengths: _containers.RepeatedScalarFieldContainer[int]
    states: bytes
    sharers: _containers.RepeatedScalarFieldContainer[int]
    held_by: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, number: _Optional[int] = ..., free: _Optional[int] = ..., cached: _Optional[int] = ..., in_use: _Optional[int] = ..., landing: _Optional[int] = ..., quarantined: _Optional[int] = ..., holders: _Optional[_Iterable[_Union[PageHolder, _Mapping]]] = ..., faults: _Optional[_Iterable[str]] = ..., page_map: _Optional[_Union[PageMap, _Mapping]] = ..., lengths: _Optional[_Iterable[int]] = ..., states: _Optional[bytes] = ..., sharers: _Optional[_Iterable[int]] = ..., held_by: _Optional[_Iterable[int]] = ...) -> None: ...

class Load(_message.Message):
    __slots__ = ("waiting", "running", "queued_tokens", "free_pages", "total_pages", "tokens_per_second", "opened", "free_places", "place_seconds", "page_seconds", "local_tokens_per_second")
    WAITING_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    QUEUED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FREE_PAGES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_PAGES_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    FREE_PLACES_FIELD_NUMBER: _ClassVar[int]
    PLACE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PAGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LOCAL_TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    waiting: int
    running: int
    queued_tokens: int
    free_pages: int
    total_pages: int
    tokens_per_second: float
    opened: int
    free_places: int
    place_seconds: float
    page_seconds: float
    local_tokens_per_second: float
    def __init__(self, waiting: _Optional[int] = ..., running: _Optional[int] = ..., queued_tokens: _Optional[int] = ..., free_pages: _Optional[int] = ..., total_pages: _Optional[int] = ..., tokens_per_second: _Optional[float] = ..., opened: _Optional[int] = ..., free_places: _Optional[int] = ..., place_seconds: _Optional[float] = ..., page_seconds: _Optional[float] = ..., local_tokens_per_second: _Optional[float] = ...) -> None: ...

class PrefixChange(_message.Message):
    __slots__ = ("sequence", "added", "removed", "snapshot")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ADDED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    added: _containers.RepeatedScalarFieldContainer[bytes]
    removed: _containers.RepeatedScalarFieldContainer[bytes]
    snapshot: bool
    def __init__(self, sequence: _Optional[int] = ..., added: _Optional[_Iterable[bytes]] = ..., removed: _Optional[_Iterable[bytes]] = ..., snapshot: bool = ...) -> None: ...

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

class PageReach(_message.Message):
    __slots__ = ("host", "uid", "transports", "shape")
    HOST_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    TRANSPORTS_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    host: str
    uid: int
    transports: _containers.RepeatedScalarFieldContainer[str]
    shape: PageShape
    def __init__(self, host: _Optional[str] = ..., uid: _Optional[int] = ..., transports: _Optional[_Iterable[str]] = ..., shape: _Optional[_Union[PageShape, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("tier", "incarnation", "address", "numerics", "fingerprint", "model", "model_hash", "page_tokens", "context_tokens", "load", "prefix", "name", "examines", "adjusts_logits", "vocabulary", "pages", "reports_pages", "all_cores", "window_tokens", "windowed_bands", "full_bands", "chunk_tokens", "adapters", "loads_adapters")
    TIER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_HASH_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    EXAMINES_FIELD_NUMBER: _ClassVar[int]
    ADJUSTS_LOGITS_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    REPORTS_PAGES_FIELD_NUMBER: _ClassVar[int]
    ALL_CORES_FIELD_NUMBER: _ClassVar[int]
    WINDOW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WINDOWED_BANDS_FIELD_NUMBER: _ClassVar[int]
    FULL_BANDS_FIELD_NUMBER: _ClassVar[int]
    CHUNK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    LOADS_ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    tier: Tier
    incarnation: int
    address: str
    numerics: str
    fingerprint: str
    model: str
    model_hash: str
    page_tokens: int
    context_tokens: int
    load: Load
    prefix: PrefixChange
    name: str
    examines: bool
    adjusts_logits: bool
    vocabulary: int
    pages: PageReach
    reports_pages: bool
    all_cores: bool
    window_tokens: int
    windowed_bands: int
    full_bands: int
    chunk_tokens: int
    adapters: _containers.RepeatedCompositeFieldContainer[NamedAdapter]
    loads_adapters: bool
    def __init__(self, tier: _Optional[_Union[Tier, str]] = ..., incarnation: _Optional[int] = ..., address: _Optional[str] = ..., numerics: _Optional[str] = ..., fingerprint: _Optional[str] = ..., model: _Optional[str] = ..., model_hash: _Optional[str] = ..., page_tokens: _Optional[int] = ..., context_tokens: _Optional[int] = ..., load: _Optional[_Union[Load, _Mapping]] = ..., prefix: _Optional[_Union[PrefixChange, _Mapping]] = ..., name: _Optional[str] = ..., examines: bool = ..., adjusts_logits: bool = ..., vocabulary: _Optional[int] = ..., pages: _Optional[_Union[PageReach, _Mapping]] = ..., reports_pages: bool = ..., all_cores: bool = ..., window_tokens: _Optional[int] = ..., windowed_bands: _Optional[int] = ..., full_bands: _Optional[int] = ..., chunk_tokens: _Optional[int] = ..., adapters: _Optional[_Iterable[_Union[NamedAdapter, _Mapping]]] = ..., loads_adapters: bool = ...) -> None: ...

class NamedAdapter(_message.Message):
    __slots__ = ("name", "digest", "folder")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    name: str
    digest: str
    folder: str
    def __init__(self, name: _Optional[str] = ..., digest: _Optional[str] = ..., folder: _Optional[str] = ...) -> None: ...

class Adapters(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[NamedAdapter]
    def __init__(self, items: _Optional[_Iterable[_Union[NamedAdapter, _Mapping]]] = ...) -> None: ...

class ReadAdapter(_message.Message):
    __slots__ = ("number", "name", "folder")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    number: int
    name: str
    folder: str
    def __init__(self, number: _Optional[int] = ..., name: _Optional[str] = ..., folder: _Optional[str] = ...) -> None: ...

class AdapterRead(_message.Message):
    __slots__ = ("number", "digest", "fault")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    number: int
    digest: str
    fault: str
    def __init__(self, number: _Optional[int] = ..., digest: _Optional[str] = ..., fault: _Optional[str] = ...) -> None: ...

class AssignAdapter(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class AbandonAdapter(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class UnloadAdapter(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class Tokens(_message.Message):
    __slots__ = ("tickets", "positions", "tokens", "logprobs", "ends", "top_counts", "top_ids", "top_logprobs", "drafted", "accepted")
    TICKETS_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    TOP_COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOP_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    tickets: _containers.RepeatedScalarFieldContainer[bytes]
    positions: _containers.RepeatedScalarFieldContainer[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    ends: _containers.RepeatedScalarFieldContainer[End]
    top_counts: _containers.RepeatedScalarFieldContainer[int]
    top_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    drafted: _containers.RepeatedScalarFieldContainer[int]
    accepted: _containers.RepeatedScalarFieldContainer[bool]
    def __init__(self, tickets: _Optional[_Iterable[bytes]] = ..., positions: _Optional[_Iterable[int]] = ..., tokens: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[float]] = ..., ends: _Optional[_Iterable[_Union[End, str]]] = ..., top_counts: _Optional[_Iterable[int]] = ..., top_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ..., drafted: _Optional[_Iterable[int]] = ..., accepted: _Optional[_Iterable[bool]] = ...) -> None: ...

class Measures(_message.Message):
    __slots__ = ("values", "distributions")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    DISTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedCompositeFieldContainer[Measure]
    distributions: _containers.RepeatedCompositeFieldContainer[Distribution]
    def __init__(self, values: _Optional[_Iterable[_Union[Measure, _Mapping]]] = ..., distributions: _Optional[_Iterable[_Union[Distribution, _Mapping]]] = ...) -> None: ...

class Measure(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: float
    def __init__(self, name: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...

class Distribution(_message.Message):
    __slots__ = ("name", "counts", "sum")
    NAME_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    name: str
    counts: _containers.RepeatedScalarFieldContainer[int]
    sum: float
    def __init__(self, name: _Optional[str] = ..., counts: _Optional[_Iterable[int]] = ..., sum: _Optional[float] = ...) -> None: ...

class Lost(_message.Message):
    __slots__ = ("ticket", "reason", "detail")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    ticket: bytes
    reason: LostReason
    detail: str
    def __init__(self, ticket: _Optional[bytes] = ..., reason: _Optional[_Union[LostReason, str]] = ..., detail: _Optional[str] = ...) -> None: ...

class Full(_message.Message):
    __slots__ = ("ticket", "kind")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ticket: bytes
    kind: FullKind
    def __init__(self, ticket: _Optional[bytes] = ..., kind: _Optional[_Union[FullKind, str]] = ...) -> None: ...

class Begun(_message.Message):
    __slots__ = ("ticket",)
    TICKET_FIELD_NUMBER: _ClassVar[int]
    ticket: bytes
    def __init__(self, ticket: _Optional[bytes] = ...) -> None: ...

class LongStep(_message.Message):
    __slots__ = ("running_ms", "limit_ms")
    RUNNING_MS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_MS_FIELD_NUMBER: _ClassVar[int]
    running_ms: int
    limit_ms: int
    def __init__(self, running_ms: _Optional[int] = ..., limit_ms: _Optional[int] = ...) -> None: ...

class Scored(_message.Message):
    __slots__ = ("ticket", "first", "logprobs", "ranks", "top_ids", "top_logprobs")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    TOP_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ticket: bytes
    first: int
    logprobs: bytes
    ranks: bytes
    top_ids: bytes
    top_logprobs: bytes
    def __init__(self, ticket: _Optional[bytes] = ..., first: _Optional[int] = ..., logprobs: _Optional[bytes] = ..., ranks: _Optional[bytes] = ..., top_ids: _Optional[bytes] = ..., top_logprobs: _Optional[bytes] = ...) -> None: ...

class Embedded(_message.Message):
    __slots__ = ("ticket", "values")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    ticket: bytes
    values: bytes
    def __init__(self, ticket: _Optional[bytes] = ..., values: _Optional[bytes] = ...) -> None: ...
