"""Checks decode's pages across all requests of a trace: none is handed out while a writer may still reach it.

A landing's pages are in the hands of its writer from Landing on: until decode receives Quiet of this ticket from that
process or Commit of its round, or admits the landing, or until that process is dead. Over a two-sided transport decode
itself discards what comes late, so there a page may be handed out at any time."""

from dataclasses import dataclass

from tests.protocol.traces.mesh_trace import MeshEvent, MeshTrace
from tests.protocol.traces.projecting import TRANSPORT_KINDS

Ticket = tuple[int, int, str]


@dataclass(slots=True)
class HeldLanding:
    ticket: Ticket
    writer: int  # process
    pages: frozenset[int]
    round: int = 0
    proven: bool = False  # its writer has said that no write of this round is in flight


def page_faults(mesh: MeshTrace) -> list[str]:
    """A line for each page that was handed out too early."""
    found = list[str]()
    held: dict[tuple[int, Ticket], HeldLanding] = {}  # by (decode, ticket)
    for event in sorted(mesh.landings, key=lambda each: each.order):
        if mesh.processes[event.process].tier != "decode" or event.ticket is None:
            continue
        key = event.process, event.ticket
        if event.what == "send" and event.kind == "Landing":
            pages = frozenset(event.fields[0])
            found += early(mesh, held, event, pages)
            if one_sided(mesh, event):
                held[key] = HeldLanding(event.ticket, event.peer, pages)
        elif (landing := held.get(key)) is None:
            continue
        elif event.what == "send" and event.kind == "Resend":
            landing.round, landing.proven = event.fields[0], False
        elif event.what == "send" and event.kind == "Landed":
            del held[key]
        elif event.what == "receive" and event.peer == landing.writer:
            quiet = event.kind == "Quiet" and event.fields[0] == mesh.processes[event.peer].incarnation
            landing.proven |= quiet or (event.kind == "Commit" and event.fields[0] == landing.round)
    return found


def one_sided(mesh: MeshTrace, event: MeshEvent) -> bool:
    return TRANSPORT_KINDS.get(mesh.transport(event.process, event.stream)) != "tcp"


def early(
    mesh: MeshTrace, held: dict[tuple[int, Ticket], HeldLanding], event: MeshEvent, pages: frozenset[int]
) -> list[str]:
    """The landings of this decode worker that still have some of these pages."""
    found, name = list[str](), mesh.processes[event.process].name
    for (process, ticket), landing in list(held.items()):
        if process != event.process or ticket == event.ticket or landing.proven or not landing.pages & pages:
            continue
        if mesh.processes[landing.writer].last_seconds < event.seconds:
            del held[process, ticket]  # its writer is dead
            continue
        page, writer = min(landing.pages & pages), mesh.processes[landing.writer].name
        found.append(f"{name} hands out page {page} again, which {writer} may still write for request {ticket[0]}")
    return found
