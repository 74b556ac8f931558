"""Messages between prefill and decode, over a kv.v1 stream: they hand pages over. Page bytes never travel here.

docs/protocol.md says what each message means."""

from dataclasses import dataclass, field

from mesh.messages.jobs import Ticket, Token
from mesh.messages.page_shape import PageShape


@dataclass(frozen=True, slots=True)
class KvHello:
    """First message of a kv.v1 session: prefill sends one, decode answers with its own."""

    incarnation: int  # incarnation of the sender
    numerics: str  # numerics class and fingerprint
    shape: PageShape | None  # the form of the sender's pages; None: an older worker, which gets no session
    host: str  # equal for processes that can share memory
    uid: int  # user id of the sender's process
    pid: int  # process id of the sender
    transports: tuple[str, ...] = ()  # from prefill: transports that it can use, best first
    chosen: str = ""  # from decode: the transport for this session, or "" if there is none
    why: str = ""  # from decode: the reason for its choice, as text for logs
    handle: bytes = b""  # from decode: how the transport reaches its pool; valid for this incarnation only
    secret: bytes = field(default=b"", repr=False)  # from prefill: the same in all its sessions with this decode worker


@dataclass(frozen=True, slots=True)
class Ready:
    """Prefill asks whether this ticket may land."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Landing:
    """Decode gives the ticket every page that it still needs, and the right to write them."""

    ticket: Ticket
    first_page: int  # index of the prompt's first page that decode lacks, in pages of decode's size
    pages: tuple[int, ...]  # decode's page ids for the indexes first_page, first_page + 1, ... that land
    first_windowed: int = 0  # stretch from which pages of bands with windows land; those of other bands all do


@dataclass(frozen=True, slots=True)
class Later:
    """Decode has no room for this ticket now; prefill asks again."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Written:
    """Spans that a one-sided transport has completely written; frames of two-sided ones carry the same themselves."""

    ticket: Ticket
    first_layer: int  # first layer of each span
    layers: int  # number of layers of each span
    round: int  # Resends that prefill had received when the write began
    pages: tuple[int, ...]  # page indexes of the prompt in pages of decode's size, not page ids
    checksums: tuple[int, ...]  # one per page, of the bytes in decode's page


@dataclass(frozen=True, slots=True)
class Computing:
    """Prefill is still at this prompt, so its landing must not time out."""

    ticket: Ticket
    longest_step_ms: int  # longest recent step of this prefill worker; the landing's deadline is measured in it


@dataclass(frozen=True, slots=True)
class Commit:
    """All spans of this round are written, and no write of this ticket is in flight."""

    ticket: Ticket
    round: int  # Resends that prefill has received
    first: Token | None  # the first token that prefill has sampled


@dataclass(frozen=True, slots=True)
class Resend:
    """Decode asks for spans that are missing or damaged."""

    ticket: Ticket
    round: int  # number of this Resend, counted from 1 for each ticket
    first_layer: int  # first layer of each span
    layers: int  # number of layers of each span
    pages: tuple[int, ...]  # page indexes of the prompt in pages of decode's size, not page ids


@dataclass(frozen=True, slots=True)
class Landed:
    """Decode has everything that it needs of this ticket; prefill releases its pages."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Abort:
    """Decode tells prefill to stop this ticket and to answer Quiet."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Quiet:
    """This incarnation of prefill has no write of this ticket in flight and begins none."""

    ticket: Ticket
    incarnation: int  # incarnation of the prefill worker that sends it
