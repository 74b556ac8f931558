"""A world of the model that a trace steers: what its workers send waits until the trace shows it.

A step of the model that sends something is an observed one: its messages are owed from then on, and the process must
send them before it does anything else. What goes into a session that has ended at its sender is not sent."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.protocol.traces.projecting import Projection, form_of
from tests.protocol.world import Message, Setting, State, Ticket, World, WriteInFlight, empty

Owed = tuple[tuple[int, int, Message], ...]  # sender, receiver, message


class TraceState(NamedTuple):
    """One state in which the mesh may be."""

    world: State
    owed: Owed
    ended: frozenset[tuple[int, int]]  # (decode, prefill): the session has ended, and decode waits for proof of a death


class NotHere(Exception):
    """The model has no such step in this state."""


@dataclass(slots=True)
class ShownFacts:
    """The facts that are the same in all possible states, because the trace shows them."""

    projection: Projection
    setting: Setting
    open: set[tuple[int, int]] = field(default_factory=set)  # (worker, peer): the session is open at this worker
    gone: set[int] = field(default_factory=set)  # workers whose processes log nothing any more
    now_seconds: float = 0.0
    acted_seconds: float = 0.0  # when the request's gateway last received something about it

    def may_move(self, world: World) -> bool:
        """Has the gateway a reason to leave a worker of the request, though its session goes on?"""
        at = world.requests[0]
        told = [self.projection.may_move.get(worker) for worker in (at.prefill, at.decode) if worker]
        silent = self.now_seconds - self.acted_seconds >= SILENT_SECONDS
        return silent or any(since is not None and since <= self.now_seconds for since in told)


SILENT_SECONDS = 5.0  # without any message about the request; the gateway leaves a worker after 20 s at the earliest


class TracedWorld(World):
    __slots__ = ("around", "ended", "owed", "proof", "routed")

    def __init__(self, around: ShownFacts, state: TraceState, routed: tuple[int, int] | None = None) -> None:
        super().__init__(around.setting, state.world)
        self.around, self.owed, self.ended, self.routed = around, state.owed, state.ended, routed
        self.proof = False  # whether decode learns in this step that a writer is dead

    def state(self) -> TraceState:
        """The state, without what can make no difference: rounds of writes, frames that decode only drains, and ends
        of sessions that decode has nothing to do for."""
        self.ended = frozenset(pair for pair in self.ended if self._matters(*pair))
        writes = {write._replace(round=0) for write in self.writes}
        if self.configuration.two_sided:
            writes = {write for write in writes if self._lands(write)}
        self.writes = frozenset(writes)
        return TraceState(self.freeze(), self.owed, self.ended)

    def _matters(self, decode: int, prefill: int) -> bool:
        landings = any(at.phase == "landing" and at.prefill == prefill for _, at in self.landings[decode])
        key = self.configuration.transport == "rdma"  # its end frees quarantined pages
        return decode not in self.around.gone and (landings or key)

    def _lands(self, write: WriteInFlight) -> bool:
        at = dict(self.landings[write.decode]).get(0)
        return at is not None and at.phase == "landing" and at.ticket == write.ticket

    def send(self, sender: int, receiver: int, *message: Any) -> None:
        if message[0] != "Register" and (sender, receiver) in self.around.open:
            self.owed = (*self.owed, (sender, receiver, message))

    def known_dead(self, worker: int, incarnation: int) -> bool:
        """A log shows when a process was alive, and not when decode's pidfd tells of its end."""
        return self.proof and worker in self.around.gone

    def route(self, request: int, usable: list[int]) -> tuple[int, int] | None:
        """The workers that the trace names for the next attempt, or none: then the request waits."""
        decode, prefill = self.routed or (0, 0)
        if (decode and decode not in usable) or (prefill and not self.usable[prefill]):
            raise NotHere("the gateway has no session with a worker of this attempt, or that one has refused it")
        return decode, prefill

    def owes(self, worker: int) -> bool:
        return any(sender == worker for sender, _, _ in self.owed)


def first_state(around: ShownFacts) -> TraceState:
    """The request is at its gateway; no attempt has begun."""
    world = empty(around.setting)
    world.usable = (True, *(False for _ in range(1, world.workers)))
    world.processes = tuple(("up", number) for number in range(world.workers))  # no two have one incarnation
    return TraceState(world.freeze(), (), frozenset())


def lose_owed(state: TraceState, worker: int, peer: int | None = None) -> TraceState:
    """The state in which this worker does not send any more what it owes (to this peer)."""
    kept = tuple(o for o in state.owed if o[0] != worker or (peer is not None and o[1] != peer))
    return state._replace(owed=kept)


def pay(state: TraceState, around: ShownFacts, way: tuple[int, int], form: Message) -> TraceState | None:
    """The state after the sender has sent the first message that it owes on this way; None: that is another one."""
    for place, (sender, receiver, message) in enumerate(state.owed):
        if (sender, receiver) == way:
            if form_of(message) != form:
                return None
            world = TracedWorld(around, state)
            world.set_stream(*way, (*world.stream(*way), message))
            world.owed = (*state.owed[:place], *state.owed[place + 1 :])
            return world.state()
    return None


def quarantined(world: TracedWorld, worker: int, writer: int) -> list[Ticket]:
    """Tickets for whose pages decode waits for proof from this writer."""
    pages = world.pages[worker]
    return sorted({page.owner[0] for page in pages if page.state == "quarantined" and page.owner[1] == writer})


def pushes(around: ShownFacts, state: TraceState, worker: int, ticket: Ticket) -> bool:
    at = dict(TracedWorld(around, state).prompts[worker]).get(ticket)
    return at is not None and at.phase == "pushing"


def described(around: ShownFacts, state: TraceState) -> str:
    """A state in a line: the phases at each worker, and what each owes."""
    world = TracedWorld(around, state)
    at = world.requests[0]
    parts = [f"gateway {at.phase} attempt {at.attempt} shown {len(at.shown)}"]
    for worker in world.setting.prefills:
        parts += [f"prefill {worker} {ticket[1]}:{p.phase}" for ticket, p in world.prompts[worker]]
    for worker in world.setting.decodes:
        parts += [f"decode {worker} {p.ticket[1]}:{p.phase} {p.position}" for _, p in world.landings[worker]]
    parts += [f"{sender} owes {receiver} {form_of(message)}" for sender, receiver, message in state.owed]
    return ", ".join(parts)
