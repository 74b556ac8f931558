"""Whether a prefill worker can hand pages to a decode worker, and by which transport; the reason is text for logs.

Decode decides when a prefill worker opens a session, and a gateway when workers register, both by these rules. Pages of
different forms need a transport whose writer converts (`mesh/messages/page_fit.py`). Shared memory needs one host *and*
one user, which is one trust boundary. Otherwise the first transport in prefill's order that decode offers too is
taken."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mesh.messages.page_fit import transport_obstacle
from mesh.messages.page_shape import PageShape

SHARES_MEMORY = ("shm", "cuda_ipc")


class EndFacts(Protocol):
    """Facts that each end of a session states about itself; a `KvHello` has these fields, and a `PageReach`."""

    @property
    def host(self) -> str: ...
    @property
    def uid(self) -> int: ...
    @property
    def shape(self) -> PageShape | None: ...
    @property
    def transports(self) -> Sequence[str]: ...


@dataclass(frozen=True, slots=True)
class PageReach:
    """The form of a worker's pages and the ways to reach them, as its Hello tells gateways."""

    host: str  # equal for processes that can share memory
    uid: int  # user id of the worker's process
    shape: PageShape | None  # the form of its pages; None: an older worker, which does not tell
    transports: tuple[str, ...]  # that it can use, best first

    @classmethod
    def of(cls, end: EndFacts) -> "PageReach":
        return cls(end.host, end.uid, end.shape, tuple(end.transports))


@dataclass(frozen=True, slots=True)
class TransportChoice:
    transport: str  # empty: the session is refused
    why: str


def choose(writer: EndFacts, receiver: EndFacts) -> TransportChoice:
    if why := _cannot_carry("", writer.shape, receiver.shape):
        return TransportChoice("", why)
    passed_over = []
    for name in writer.transports:
        if name not in receiver.transports:
            passed_over.append(f"{name}: decode does not offer it")
        elif name in SHARES_MEMORY and (obstacle := cannot_share(writer, receiver)):
            passed_over.append(f"{name}: {obstacle}")
        elif obstacle := _cannot_carry(name, writer.shape, receiver.shape):
            passed_over.append(f"{name}: {obstacle}")
        else:
            why_not = "; ".join(passed_over) or "prefill's first choice"
            return TransportChoice(name, "same host and user" if name in SHARES_MEMORY else why_not)
    return TransportChoice("", "no transport in common: " + ("; ".join(passed_over) or "prefill offers none"))


def _cannot_carry(transport: str, writer: PageShape | None, receiver: PageShape | None) -> str:
    """Why this transport, or any, cannot hand pages over, even converted. Two older workers judge that themselves."""
    if writer is not None and receiver is not None:
        return transport_obstacle(transport, writer, receiver)
    if writer is receiver:
        return ""
    silent = "prefill" if writer is None else "decode"
    return f"shape: {silent} does not describe its pages; run one release on both tiers"


def cannot_share(writer: EndFacts, receiver: EndFacts) -> str:
    """Why these two cannot share memory; empty when they can."""
    if not writer.host or writer.host != receiver.host:
        return "another host, or a container without a common file system and process table"
    if writer.uid != receiver.uid:
        return f"another user: prefill has uid {writer.uid}, decode {receiver.uid}"
    return ""
