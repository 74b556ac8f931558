"""Whether a prefill worker can hand pages to a decode worker, and by which transport; the reason is text for logs.

Decode decides when a prefill worker opens a session, and a gateway when workers register, both by these rules. Shared
memory needs one host *and* one user, which is one trust boundary. Otherwise the first transport in prefill's order that
decode offers too is taken."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

SHARES_MEMORY = ("shm", "cuda_ipc")


class EndFacts(Protocol):
    """Facts that each end of a session states about itself; a `KvHello` has these fields, and a `PageReach`."""

    @property
    def host(self) -> str: ...
    @property
    def uid(self) -> int: ...
    @property
    def layout(self) -> str: ...
    @property
    def page_bytes(self) -> int: ...
    @property
    def transports(self) -> Sequence[str]: ...


@dataclass(frozen=True, slots=True)
class PageReach:
    """The form of a worker's pages and the ways to reach them, as its Hello tells gateways."""

    host: str  # equal for processes that can share memory
    uid: int  # user id of the worker's process
    layout: str  # name of the tile layout inside a page
    page_bytes: int  # bytes of one page
    transports: tuple[str, ...]  # that it can use, best first

    @classmethod
    def of(cls, end: EndFacts) -> "PageReach":
        return cls(end.host, end.uid, end.layout, end.page_bytes, tuple(end.transports))


@dataclass(frozen=True, slots=True)
class TransportChoice:
    transport: str  # empty: the session is refused
    why: str


def choose(writer: EndFacts, receiver: EndFacts) -> TransportChoice:
    if writer.layout != receiver.layout:
        same_model = writer.layout.partition("+")[0] == receiver.layout.partition("+")[0]
        what = "draft models differ, so give both tiers the same `draft`" if same_model else "page layouts differ"
        return TransportChoice("", f"{what}: prefill has {writer.layout!r}, decode {receiver.layout!r}")
    if writer.page_bytes != receiver.page_bytes:
        return TransportChoice(
            "", f"pages differ: prefill's have {writer.page_bytes} bytes, decode's {receiver.page_bytes}"
        )
    passed_over = []
    for name in writer.transports:
        if name not in receiver.transports:
            passed_over.append(f"{name}: decode does not offer it")
        elif name in SHARES_MEMORY and (obstacle := cannot_share(writer, receiver)):
            passed_over.append(f"{name}: {obstacle}")
        else:
            why_not = "; ".join(passed_over) or "prefill's first choice"
            return TransportChoice(name, "same host and user" if name in SHARES_MEMORY else why_not)
    return TransportChoice("", "no transport in common: " + ("; ".join(passed_over) or "prefill offers none"))


def cannot_share(writer: EndFacts, receiver: EndFacts) -> str:
    """Why these two cannot share memory; empty when they can."""
    if not writer.host or writer.host != receiver.host:
        return "another host, or a container without a common file system and process table"
    if writer.uid != receiver.uid:
        return f"another user: prefill has uid {writer.uid}, decode {receiver.uid}"
    return ""
