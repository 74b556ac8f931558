"""Checks one request's part of a trace against the model: each event must be a step that the model allows.

The design, which is that of trace validation with TLA+:
* A trace shows what processes send, receive, and notice of their sessions. It does not show when bytes arrive, what
  other requests do, or what a process knows. So the check keeps the set of all states in which the model may be.
* A received message must be the next one of its session, and the model's own step of the receiver handles it.
* A sent message must be one that the sender owes by a step before, or that a step of its own sends now. A process owes
  what a step sends until it has sent it, and does nothing else meanwhile.
* Steps that nothing shows are taken in all ways between two events (tests/protocol/traces/environment.py).
* An event after which no state is left is a violation. At the end no living process may owe anything."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.protocol import decode, explore, gateway, prefill
from tests.protocol.traces.environment import (
    LEFT_WITHIN_A_MESSAGE,
    Act,
    ends_once_more,
    received_otherwise,
    silent_steps,
)
from tests.protocol.traces.projecting import ObservedStep, Projection, form_of
from tests.protocol.traces.shown import shown_steps
from tests.protocol.traces.traced_world import (
    NotHere,
    ShownFacts,
    TracedWorld,
    TraceState,
    described,
    first_state,
    lose_owed,
    pay,
    pushes,
    quarantined,
)
from tests.protocol.traces.under_way import FACTS, UnderWay
from tests.protocol.world import BROKEN, FREE, GATEWAY, Message, Setting, Violation, replaced

MOST_STATES = 4000
ARRIVES_SECONDS = 12.0  # a stopped process takes nothing meanwhile, and tests stop processes for less
IMPOSSIBLE = (Violation, NotHere, StopIteration, KeyError, IndexError)  # the model has no such step in a state


@dataclass(slots=True)
class WalkOutcome:
    events: int = 0
    most_states: int = 0
    problem: str = ""
    step: ObservedStep | None = None  # the event that no state allows; None: the problem is at the end
    allowed: list[str] = field(default_factory=list)  # what the states before it allow


class RequestWalk:
    def __init__(self, projection: Projection, *, arrives_seconds: float | None = ARRIVES_SECONDS) -> None:
        """`arrives_seconds`: within this time a message arrives in a session that goes on; None: the trace has no
        times."""
        self.projection, self._arrives_seconds = projection, arrives_seconds
        self.around = ShownFacts(projection, Setting(projection.configuration))
        self.states: set[TraceState] = {first_state(self.around)}
        self._under_way = UnderWay()
        self._orders = {step.event.order for step in projection.steps}
        self._silent: dict[TraceState, list[TraceState]] = {}  # what one silent step leads to

    def run(self) -> WalkOutcome:
        outcome = WalkOutcome()
        for step in self.projection.steps:
            self.around.now_seconds = step.event.seconds
            self.states = self.closure()
            outcome.events += 1
            outcome.most_states = max(outcome.most_states, len(self.states))
            before = self.states
            problem = self.take(step) if len(before) <= MOST_STATES else "too many states are possible here"
            if problem or not self.states:
                outcome.problem, outcome.step = problem or "no state of the model allows this", step
                outcome.allowed = [described(self.around, state) for state in sorted(before, key=repr)[:4]]
                return outcome
            if step.worker == GATEWAY:
                self.around.acted_seconds = step.event.seconds
        if not any(not state.owed for state in self.states):
            outcome.problem = "a process that went on owes a message and never sends it"
            outcome.allowed = [described(self.around, state) for state in sorted(self.states, key=repr)[:4]]
        elif self._arrives_seconds is not None:
            outcome.problem = self.overdue(self._arrives_seconds)
        return outcome

    def overdue(self, seconds: float) -> str:
        """Something that has not happened within this time, though nothing kept the processes from it."""
        if late := self._under_way.overdue(self.projection.steps, seconds):
            return f"a message never arrives, though its session went on: {late}"
        steps = self.projection.steps
        ended = {(s.worker, s.peer): s.event.seconds for s in steps if s.what == "end"}
        for pair in frozenset.intersection(*(state.ended for state in self.states)):
            if max(s.event.seconds for s in steps if s.worker == pair[0]) - ended[pair] > seconds:
                return f"worker {pair[0]} never handles the end of its session with worker {pair[1]}"
        return ""

    def closure(self) -> set[TraceState]:
        """All states that silent steps lead to."""
        found, todo = set(self.states), list(self.states)
        while todo:
            state = todo.pop()
            if (following := self._silent.get(state)) is None:
                acts = silent_steps(TracedWorld(self.around, state))
                following = self._silent[state] = [
                    after for after in self.after_each(state, acts) if after.owed == state.owed
                ]
            new = [after for after in following if after not in found]
            found.update(new)
            todo += new
            if len(found) > MOST_STATES:
                break
        return found

    def after_each(
        self,
        state: TraceState,
        acts: Iterable[Act],
        routes: tuple[tuple[int, int] | None, ...] = (None,),
    ) -> list[TraceState]:
        found = list[TraceState]()
        for act in acts:
            for route in routes:
                world = TracedWorld(self.around, state, route)
                try:
                    act(world)
                except IMPOSSIBLE:
                    continue
                found.append(world.state())
        return found

    # ---- one event

    def take(self, step: ObservedStep) -> str:
        """Go on to the states behind this event; returns what is wrong with it for every state."""
        match step.what:
            case "send":
                self.sent(step)
            case "receive":
                return self.received(step)
            case "begin":
                self.begun(step)
            case "close":
                self.around.open.discard((step.worker, step.peer))
                self.states = {lose_owed(state, step.worker, step.peer) for state in self.states}
            case "end":
                self.around.open.discard((step.worker, step.peer))
                self.ended(step)
            case "gone":
                self.gone(step.worker)
        if step.what not in ("send", "receive"):
            self._silent.clear()
        return ""

    def sent(self, step: ObservedStep) -> None:
        way, found = (step.worker, step.peer), set[TraceState]()
        if step.form[0] in FACTS:
            self.states = {state for state in self.states if pushes(self.around, state, step.worker, step.form[1])}
            return
        for state in self.states:
            world = TracedWorld(self.around, state)
            shown = [state] if world.owes(step.worker) else self.after_each(state, shown_steps(world, step))
            found |= {after for each in shown if (after := pay(each, self.around, way, step.form)) is not None}
        self.states = found
        self._under_way.sent(step)

    def received(self, step: ObservedStep) -> str:
        if step.form[0] in FACTS:
            return ""
        way, places = (step.peer, step.worker), self._under_way.next_places(step)
        if step.peer == GATEWAY and (step.worker, GATEWAY) not in self.around.open:
            self.around.open.add((step.worker, GATEWAY))
            self._silent.clear()
        found, chosen = set[TraceState](), None
        for state in self.states:
            stream = TracedWorld(self.around, state).stream(*way)
            fitting = [place for place in places if form_of(stream[place]) == step.form]
            free = self.beside(step, -1) or not any(sender == step.worker for sender, _, _ in state.owed)
            if fitting and free:
                chosen = fitting[0]
                found |= set(self.delivered(state, step, stream, chosen))
        if chosen is None:
            stream = TracedWorld(self.around, next(iter(self.states))).stream(*way)
            wanted = [form_of(stream[place]) for place in places]
            return f"the next message of this session is {wanted[0]}" if wanted else "no such message is under way"
        self._under_way.received(step, chosen)
        self.states = found
        return ""

    def delivered(
        self, state: TraceState, step: ObservedStep, stream: tuple[Message, ...], at: int
    ) -> list[TraceState]:
        """The states behind the receiver's own step, and behind the other answers that it may give."""
        kept = self._under_way.kept(step, at)
        rest = tuple(message for place, message in enumerate(stream) if place in kept)

        def own(world: TracedWorld) -> None:
            world.set_stream(step.peer, step.worker, (stream[at],))
            explore.deliver(world, step.peer, step.worker)
            world.set_stream(step.peer, step.worker, rest)

        def other(act: Act) -> Act:
            def take(world: TracedWorld) -> None:
                world.set_stream(step.peer, step.worker, rest)
                act(world)

            return take

        acts = [own, *map(other, received_otherwise(TracedWorld(self.around, state), step, stream[at]))]
        if step.worker == GATEWAY:
            acts.append(lambda world: ends_once_more(world, own))
        if step.worker == GATEWAY and self.beside(step, 1):
            acts += [lambda world, leave=leave: leave(world, own) for leave in LEFT_WITHIN_A_MESSAGE]
        return self.after_each(state, acts, self.routes(state) if step.worker == GATEWAY else (None,))

    def beside(self, step: ObservedStep, places: int) -> bool:
        """Is there another token of this request so many places further in the same message?"""
        seconds, process, number, place = step.event.order
        return place + places >= 0 and (seconds, process, number, place + places) in self._orders

    def routes(self, state: TraceState) -> tuple[tuple[int, int] | None, ...]:
        """Where the next attempt may go: as the trace says, or nowhere yet."""
        attempt = TracedWorld(self.around, state).requests[0].attempt
        following = self.projection.routes.get(attempt + 1)
        return (None,) if following is None else (following, None)

    # ---- sessions and processes

    def begun(self, step: ObservedStep) -> None:
        """A gateway may use the worker. Decode asks the writer for what it owes, and has nothing of its last session
        to handle any more."""
        worker, peer = step.worker, step.peer
        self.around.open.add((worker, peer))

        def begin(world: TracedWorld) -> None:
            if worker == GATEWAY:
                world.usable = replaced(world.usable, peer, True)
            elif (worker, peer) in world.ended:
                raise NotHere("the end of the older session is not handled yet")
            elif not world.is_prefill(worker):
                for ticket in quarantined(world, worker, peer):
                    world.send(worker, peer, "Abort", ticket)

        self.states = {after for state in self.states for after in self.after_each(state, [begin])}

    def ended(self, step: ObservedStep) -> None:
        worker, peer = step.worker, step.peer

        def end(world: TracedWorld) -> None:
            if worker == GATEWAY:
                gateway.receive(world, peer, BROKEN)
            elif world.is_prefill(worker):
                prefill.receive(world, worker, peer, BROKEN)
            elif peer == GATEWAY:
                decode.receive(world, worker, peer, BROKEN)
            else:
                world.ended |= {(worker, peer)}  # decode waits for proof of the writer's death

        found = set[TraceState]()
        for state in self.states:
            state = lose_owed(state, worker, peer)
            if any(sender == worker for sender, _, _ in state.owed):
                continue
            acts: list[Act] = [end]
            if worker == GATEWAY:
                acts.append(lambda world: ends_once_more(world, end))
            if TracedWorld(self.around, state).is_prefill(worker):
                acts += received_otherwise(TracedWorld(self.around, state), step, BROKEN)  # type: ignore[arg-type]
            found |= set(self.after_each(state, acts, self.routes(state) if worker == GATEWAY else (None,)))
        self.states = found

    def gone(self, worker: int) -> None:
        """The process logs nothing any more: it is dead, or nothing of it is left but its death."""
        self.around.gone.add(worker)
        self.around.open = {(one, other) for one, other in self.around.open if one != worker}

        def dies(world: TracedWorld) -> None:
            if worker == GATEWAY:
                return
            world.set_process(worker, "dead", worker)
            world.prompts = replaced(world.prompts, worker, ())
            world.landings = replaced(world.landings, worker, ())
            world.pages = replaced(world.pages, worker, (FREE,) * world.configuration.pool_pages)
            if world.configuration.transport != "rdma":
                world.writes = frozenset(w for w in world.writes if w.prefill != worker)

        lost = {lose_owed(state, worker) for state in self.states}
        self.states = {after for state in lost for after in self.after_each(state, [dies])}
