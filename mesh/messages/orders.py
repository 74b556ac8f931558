"""Messages from a gateway to a worker, over the Attach stream that the gateway has dialled.

docs/protocol.md says what each message means."""

from dataclasses import dataclass

from mesh.messages.jobs import Job, Pooling, Ticket


@dataclass(frozen=True, slots=True)
class Prefill:
    """To prefill: compute this prompt and hand it to this decode worker. Replaces lower attempts of the request."""

    job: Job
    decode_address: str  # address of the decode worker's kv.v1 service
    decode_incarnation: int  # Ready goes to this incarnation only


@dataclass(frozen=True, slots=True)
class Open:
    """To decode: expect this request from prefill. The only message that raises an attempt at decode."""

    job: Job
    prefill_incarnation: int | None  # None: local, decode computes the prompt itself
    age_ms: int = 0  # time since the gateway accepted the request


@dataclass(frozen=True, slots=True)
class Examination:
    """The report wanted of a prompt that a worker computes alone: with `pooling` an embedding, else logprobs."""

    top: int = 0  # number of likeliest tokens whose logprobs are wanted too, at each position
    pooling: Pooling | None = None  # how the embedding is made
    dimensions: int = 0  # first values of the embedding that are wanted; 0: all


@dataclass(frozen=True, slots=True)
class Examine:
    """To either tier: compute this prompt alone and report. It has no landing and no decode. Replaces lower attempts
    of the request."""

    job: Job  # its sampling parameters have no meaning
    examination: Examination


@dataclass(frozen=True, slots=True)
class Cancel:
    """To both: forget this attempt of a request and all lower ones."""

    request: int  # the request's id, as in its tickets
    attempt: int

    def concerns(self, ticket: Ticket) -> bool:
        """Lower attempts too: a worker that has refused the job of this one may still hold the attempt before."""
        return ticket.request == self.request and ticket.attempt <= self.attempt


@dataclass(frozen=True, slots=True)
class ClockProbe:
    """To both: answer with the own clock, so that the gateway can convert the times of Phases."""

    number: int  # the reading repeats it


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Gateway to worker: a PrefixChange is missing, send the whole cache."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Gateway to worker: it gets no requests, because it fits no worker of the other tier or its model is unknown."""

    why: str  # for the worker's log; empty: it gets requests again


@dataclass(frozen=True, slots=True)
class Watch:
    """Gateway to worker: a person looks at the mesh; send PageMap whenever pages changed, at most twice a second."""

    seconds: int  # time after the last Watch at which the worker stops


@dataclass(frozen=True, slots=True)
class PageQuery:
    """Gateway to worker: a person looks at pages; answer PageReport."""

    number: int  # the report repeats it
    first: int = 0  # pages from this one on are listed one by one
    count: int = 0  # number of these pages; 0: the report has sums only
