"""One state of a small world: the workers, the streams between them, the writes in flight, and what each side knows.

Worker 0 is the gateway, then come the prefill workers, then the decode workers. A `World` is a state opened for
change: every part is an immutable value, a change replaces the part, and `freeze` gives the state back as one tuple."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.protocol.configurations import Configuration

Ticket = tuple[int, int, int]  # request, attempt, run of the gateway (for its random bits)
Message = tuple[Any, ...]  # name of the message's class, then its fields; from a worker to a worker over one stream
State = tuple[Any, ...]

GATEWAY = 0
BROKEN = ("stream broke",)  # the next thing that the receiver notices on this stream
REGISTER = ("Register",)
DAMAGED = 9  # the page index of bytes that no checksum accepts


class Violation(Exception):
    """Something that the protocol promises never happens."""

    label: tuple[Any, ...] = ()


class RequestAt(NamedTuple):
    """A request at the gateway. `shown` names the attempt that produced each token the client has."""

    phase: str  # waiting, open, paused, done, cancelled, expired, error
    attempt: int
    base: int
    prefill: int
    decode: int
    handed: bool
    shown: tuple[int, ...]
    refused: int  # a bit for each decode worker that has answered Full


class PromptAt(NamedTuple):
    """A prompt at prefill; its key is the ticket."""

    phase: str  # a value of PromptPhase
    decode: int
    base: int
    pushed: int  # pages computed and posted
    landing: tuple[int, ...]  # page ids at decode
    round: int
    pool: int  # the incarnation of decode whose memory these page ids name


class LandingAt(NamedTuple):
    """A request at decode. `source` is the ticket under which its pages were written."""

    ticket: Ticket
    phase: str  # a value of DecodePhase
    prefill: int
    base: int
    position: int
    pages: tuple[int, ...]
    round: int
    committed: bool
    passed: int  # younger requests that landed before it since it got Later; -1: it never got Later
    source: tuple[int, ...]


class PageAt(NamedTuple):
    """A page of a decode pool."""

    state: str  # free (or cached), in use, landing, quarantined
    owner: tuple[Any, ...]  # ticket, writer, incarnation of the writer, round
    content: tuple[Any, ...]  # ticket that wrote it, index of the prompt's page


class WriteInFlight(NamedTuple):
    """A write or frame that has left prefill and has not reached decode's memory."""

    prefill: int
    incarnation: int
    decode: int
    page: int
    half: bool  # two-sided: decode has begun to receive it
    ticket: Ticket
    index: int
    round: int


FREE = PageAt("free", (), ())


@dataclass(frozen=True, slots=True)
class Setting:
    """The part of a world that stays the same during an exploration."""

    configuration: Configuration
    removed: frozenset[str] = frozenset()

    @property
    def workers(self) -> int:
        return 1 + self.configuration.prefills + self.configuration.decodes

    @property
    def prefills(self) -> range:
        return range(1, self.configuration.prefills + 1)

    @property
    def decodes(self) -> range:
        return range(self.configuration.prefills + 1, self.workers)


def replaced(values: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:
    return *values[:index], value, *values[index + 1 :]


class World:
    __slots__ = (
        "configuration", "faults_left", "gateway_run", "landings", "pages", "processes", "prompts", "removed",
        "requests", "setting", "streams", "usable", "workers", "writes", "zombies",
    )  # fmt: skip

    def __init__(self, setting: Setting, state: State) -> None:
        self.setting, self.configuration, self.removed = setting, setting.configuration, setting.removed
        self.workers = setting.workers
        (
            self.gateway_run,  # how often the gateway has restarted
            self.usable,  # for each worker whether the gateway has a session with it
            self.requests,  # RequestAt of each request
            self.prompts,  # for each prefill worker its (ticket, PromptAt), sorted
            self.landings,  # for each decode worker its (request, LandingAt), sorted
            self.pages,  # for each decode worker its PageAt
            self.processes,  # for each worker (up, stopped or dead; incarnation)
            self.zombies,  # (worker, incarnation) of stopped processes that were replaced
            self.streams,  # for each pair (sender, receiver) the messages under way
            self.writes,  # the WriteInFlight of each write that has not ended
            self.faults_left,
        ) = state

    def freeze(self) -> State:
        return (
            self.gateway_run, self.usable, self.requests, self.prompts, self.landings, self.pages, self.processes,
            self.zombies, self.streams, self.writes, self.faults_left,
        )  # fmt: skip

    def guarded(self, protection: str) -> bool:
        """Whether this protection is in place."""
        return protection not in self.removed

    # ---- workers and streams

    def is_prefill(self, worker: int) -> bool:
        return 1 <= worker <= self.configuration.prefills

    def peers(self, worker: int) -> tuple[int, ...]:
        """The workers that this one has streams with."""
        prefills, decodes = self.setting.prefills, self.setting.decodes
        if worker == GATEWAY:
            return (*prefills, *decodes)
        return (GATEWAY, *decodes) if self.is_prefill(worker) else (GATEWAY, *prefills)

    def stream(self, sender: int, receiver: int) -> tuple[Message, ...]:
        messages: tuple[Message, ...] = self.streams[sender * self.workers + receiver]
        return messages

    def set_stream(self, sender: int, receiver: int, messages: tuple[Message, ...]) -> None:
        self.streams = replaced(self.streams, sender * self.workers + receiver, messages)

    def send(self, sender: int, receiver: int, *message: Any) -> None:
        """A dead receiver, or a break that the sender has not noticed, swallows the message."""
        if self.up_or_stopped(receiver) and not self.broken(sender, receiver):
            self.set_stream(sender, receiver, (*self.stream(sender, receiver), message))

    def route(self, request: int, usable: list[int]) -> tuple[int, int] | None:
        """The (decode, prefill) of the request's next attempt where a trace names them; None: the model chooses."""
        return None

    def broken(self, worker: int, peer: int) -> bool:
        """Whether the stream with this peer broke and the worker has not noticed yet."""
        return BROKEN in self.stream(peer, worker)

    def up(self, worker: int) -> bool:
        up: bool = self.processes[worker][0] == "up"
        return up

    def up_or_stopped(self, worker: int) -> bool:
        alive: bool = self.processes[worker][0] != "dead"
        return alive

    def incarnation(self, worker: int) -> int:
        incarnation: int = self.processes[worker][1]
        return incarnation

    def set_process(self, worker: int, state: str, incarnation: int) -> None:
        self.processes = replaced(self.processes, worker, (state, incarnation))

    def known_dead(self, worker: int, incarnation: int) -> bool:
        """Whether a pidfd reports the death of this process."""
        if (worker, incarnation) in self.zombies:
            return False
        return not self.up_or_stopped(worker) or self.incarnation(worker) != incarnation

    # ---- what both tiers ask

    def prompt_pages(self, request: int, base: int) -> int:
        """Pages of the prompt and of the tokens that the client has."""
        wanted = self.configuration.wanted[request]
        return wanted.pages + (1 if wanted.grows_at and base > wanted.grows_at else 0)

    def same_ticket(self, one: Ticket, other: Ticket) -> bool:
        return (
            one[0] == other[0]
            and (one[1] == other[1] or not self.guarded("fence"))
            and (one[2] == other[2] or not self.guarded("ticket"))
        )

    def write_in_flight(self, prefill: int, ticket: Ticket) -> bool:
        """Whether this very process has a write of the ticket in flight."""
        incarnation = self.incarnation(prefill)
        return any(w.prefill == prefill and w.incarnation == incarnation and w.ticket == ticket for w in self.writes)


def empty(setting: Setting) -> World:
    """The world before the first request is routed: every worker is up, every page free, every stream empty."""
    configuration, workers = setting.configuration, setting.workers
    requests = tuple(RequestAt("waiting", 0, 0, 0, 0, False, (), 0) for _ in configuration.wanted)
    return World(
        setting,
        (
            0,
            (True,) * workers,
            requests,
            ((),) * workers,
            ((),) * workers,
            ((FREE,) * configuration.pool_pages,) * workers,
            (("up", 0),) * workers,
            frozenset(),
            ((),) * (workers * workers),
            frozenset(),
            configuration.budget,
        ),
    )
