"""The environment of a request: what its trace cannot show, admitted as steps of its world.

`ENVIRONMENT` names each of them with its reason: other requests take pages and turns, clients and operators act, timers
pass, bytes are damaged. Each entry weakens the check, so each is allowed only in the phases, and after the reports, in
which docs/protocol.md knows it."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.protocol import decode as decode_tier
from tests.protocol import decode_steps, gateway, landing, prefill
from tests.protocol.configurations import Configuration
from tests.protocol.decode_pages import set_page
from tests.protocol.traces.projecting import ObservedStep
from tests.protocol.traces.traced_world import NotHere, TracedWorld
from tests.protocol.world import BROKEN, DAMAGED, FREE, GATEWAY, LandingAt, Message, PromptAt, Ticket, World

Act = Callable[[TracedWorld], None]

ENVIRONMENT = {
    "its turn": "a waiting request is opened when a worker, room or its turn comes: other requests decide when",
    "moved on": "drain, a hung worker: the gateway leaves a worker whose session goes on",
    "judged": "the gateway holds a request back whose workers have died, or ends it; also one that fits no worker",
    "client": "the client leaves, is behind, reads on; its deadline passes; it has its stop string",
    "room again": "a decode worker that answered Full reports room",
    "no room": "pages of other requests: decode answers Ready with Later",
    "own pool full": "pages of other prompts: prefill gives a Landing back",
    "refused": "decode answers Open with Full or Lost: this request alone exceeds it, or its grammar does",
    "not understood": "a worker refuses an order that it cannot compute as it comes, and keeps the attempt before it",
    "given up": "Lost for a reason that the model does not know: preempted, late, failed, grammar, too large",
    "no progress": "the timer of a landing",
    "write fails": "prefill cannot push: its write fails, or decode is unreachable for a lease",
    "deadline": "a worker's own timer drops a request whose client has set a deadline",
    "damage": "bytes are damaged, torn or lost on their way, again and again; after three repairs decode computes them",
    "asks again": "decode repeats Abort for quarantined pages, once a heartbeat",
    "quiet again": "a stopped prompt whose step still runs says Quiet again at a further Cancel, or its deadline",
    "layer by layer": "a prompt's pages land while it is computed: its first token leaves before or after the last",
    "nothing to write": "decode's prefix cache has the whole prompt: a Landing without pages is complete at once",
    "a frame still leaves": "two-sided: Quiet waits for a frame that the kernel has not taken",
}
MOST_REPAIRS = 3


# ---- steps that nothing shows


def silent_steps(world: TracedWorld) -> Iterator[Act]:
    """They change the state, and no message tells of them."""
    for write in world.writes:
        if write.decode not in world.around.gone:
            yield lambda w, write=write: landing.write_lands(w, write)  # type: ignore[misc]
    for worker in world.setting.prefills:
        if worker not in world.around.gone:
            yield from silent_prefill_steps(world, worker)
    for worker in world.setting.decodes:
        if worker not in world.around.gone:
            yield from silent_decode_steps(world, worker)
    if GATEWAY not in world.around.gone:
        yield from silent_gateway_steps(world)


def silent_gateway_steps(world: TracedWorld) -> Iterator[Act]:
    at = world.requests[0]
    sessions = any(sender == GATEWAY for sender, _ in world.around.open)
    if at.phase in ("waiting", "paused") or (at.phase == "open" and not sessions):
        yield lambda w: gateway.end(w, 0, "cancelled")  # client, judged
    if at.phase == "paused" or (at.phase == "open" and not sessions):
        yield wait  # moved on, client
    if at.phase in ("waiting", "open") and at.refused:  # room again
        yield lambda w: gateway.set_request(w, 0, refused=0)


def wait(world: TracedWorld) -> None:
    world.routed = None
    gateway.raise_attempt(world, 0)


def pauses_then(world: TracedWorld, act: Act) -> None:
    act(world)
    gateway.pause(world, 0)


def ends_then(world: TracedWorld, act: Act) -> None:
    act(world)
    gateway.end(world, 0, "cancelled")


# Client: a token makes the gateway leave the workers, before it looks at the next token of the same message.
LEFT_WITHIN_A_MESSAGE = (pauses_then, ends_then)


def ends_once_more(world: TracedWorld, act: Act) -> None:
    """The gateway leaves the workers and finds at once that no other one will ever do: both get Cancel again."""
    before = world.requests[0]
    world.routed = None
    act(world)
    if (before.phase, world.requests[0].phase) != ("open", "waiting"):
        raise NotHere("no attempt was left")
    gateway.set_request(world, 0, prefill=before.prefill, decode=before.decode)
    gateway.end(world, 0, "error")  # judged


def silent_prefill_steps(world: TracedWorld, worker: int) -> Iterator[Act]:
    for ticket, at in world.prompts[worker]:
        if at.phase == "pushing" and at.pushed == 0:  # layer by layer
            yield lambda w, t=ticket: write_page(w, worker, t)  # type: ignore[misc]
        if not any(sender == worker and receiver == at.decode for sender, receiver in world.around.open):
            if at.phase == "stopping" and not world.write_in_flight(worker, ticket):
                yield lambda w, t=ticket: prefill.step(w, worker, "quiet", t)  # type: ignore[misc]
            if may_commit(world, worker, ticket, at):
                yield lambda w, t=ticket: prefill.step(w, worker, "commit", t)  # type: ignore[misc]
        if world.around.projection.timed and at.phase in ("queued", "asked"):  # deadline
            yield lambda w, t=ticket: stop(w, worker, t)  # type: ignore[misc]


def silent_decode_steps(world: TracedWorld, worker: int) -> Iterator[Act]:
    for request, at in world.landings[worker]:
        if at.phase == "local":
            yield lambda w, r=request: decode_steps.step(w, worker, "prefill", r)  # type: ignore[misc]
        if world.around.projection.timed and at.phase != "landing":
            yield lambda w, r=request: drop(w, worker, r)  # type: ignore[misc]
        if at.phase == "landing" and at.ticket[1] in world.around.projection.empty:  # nothing to write
            yield lambda w, at=at: fill(w, worker, at)  # type: ignore[misc]
        if at.phase == "landing" and world.around.projection.repaired:  # damage
            yield from damages(world, worker, at)
    for page, entry in enumerate(world.pages[worker]):
        if entry.state == "quarantined" and entry.owner[1] in world.around.gone:
            yield lambda w, p=page: set_page(w, worker, p, FREE)  # type: ignore[misc]
    for prefill_worker in world.setting.prefills:
        if (worker, prefill_worker) in world.ended:
            for proof in (False, True):
                yield lambda w, p=prefill_worker, s=proof: session_over(w, worker, p, proof=s)  # type: ignore[misc]


def fill(world: World, worker: int, at: LandingAt) -> None:
    """Every page of the landing has its content."""
    for index, page in enumerate(at.pages):
        set_page(world, worker, page, world.pages[worker][page]._replace(content=(at.ticket, index)))


def damages(world: TracedWorld, worker: int, at: LandingAt) -> Iterator[Act]:
    for index, page in enumerate(at.pages):
        entry = world.pages[worker][page]
        if entry.content and entry.content[1] != DAMAGED:
            bad = entry._replace(content=(at.ticket, DAMAGED))
            yield lambda w, p=page, bad=bad: set_page(w, worker, p, bad)  # type: ignore[misc]
        if at.round >= MOST_REPAIRS and entry.content != (at.ticket, index):
            good = entry._replace(content=(at.ticket, index))
            yield lambda w, p=page, good=good: set_page(w, worker, p, good)  # type: ignore[misc]


def session_over(world: TracedWorld, worker: int, prefill_worker: int, *, proof: bool) -> None:
    """Decode handles the end of a session. `proof`: it knows by now that the writer is dead."""
    world.ended -= {(worker, prefill_worker)}
    world.proof = proof
    decode_tier.receive(world, worker, prefill_worker, BROKEN)


def may_commit(world: World, worker: int, ticket: Ticket, at: PromptAt) -> bool:
    written = world.configuration.two_sided or not world.write_in_flight(worker, ticket)
    return at.phase == "pushing" and at.pushed > 1 and written


def write_page(world: World, worker: int, ticket: Ticket) -> None:
    """The only page of a prompt leaves; `pushed` is 2 once the first token has left too."""
    table = dict(world.prompts[worker])
    prefill.post(world, worker, ticket, table[ticket], 0)
    table[ticket] = table[ticket]._replace(pushed=1)
    prefill.set_table(world, worker, table)


def stop(world: World, worker: int, ticket: Ticket) -> None:
    table = dict(world.prompts[worker])
    prefill.stop(world, worker, table, ticket)
    prefill.set_table(world, worker, table)


def drop(world: World, worker: int, request: int) -> None:
    table = dict(world.landings[worker])
    landing.drop(world, worker, table, request)
    landing.set_table(world, worker, table)


# ---- other answers to a received message


def received_otherwise(world: TracedWorld, step: ObservedStep, message: Message) -> Iterator[Act]:
    """The receiver may do this instead of the model's own answer. `message`: as the model has sent it, or a break."""
    kind, worker, configuration = message[0], step.worker, world.configuration
    if worker == GATEWAY:
        if kind in ("Lost", "Full") and current(world, step):
            yield lambda w: gateway.end(w, 0, "error")
    elif world.is_prefill(worker):
        if kind == "Prefill":  # not understood
            yield lambda w: w.send(worker, GATEWAY, "Lost", step.form[1])
        if kind == "Landing":  # own pool full
            yield lambda w: receive_as(w, replace(configuration, prefill_pages=0), step, message)
        elif configuration.two_sided:  # a frame still leaves
            yield lambda w: receive_without_quiet(w, step, message)
    elif kind == "Ready":  # no room
        yield lambda w: no_room(w, worker, step)
    elif kind == "Open":  # refused
        yield lambda w: w.send(worker, GATEWAY, "Lost", step.form[1])  # not understood
        for answer in ("Full", "Lost"):
            yield lambda w, answer=answer: refuse(w, worker, step, answer)  # type: ignore[misc]


def current(world: World, step: ObservedStep) -> bool:
    at = world.requests[0]
    return at.phase == "open" and step.form[1] == (0, at.attempt, 0)


def receive_as(world: World, configuration: Configuration, step: ObservedStep, message: Message) -> None:
    """Prefill's own step under another configuration."""
    before, world.configuration = world.configuration, configuration
    prefill.receive(world, step.worker, step.peer, message)
    world.configuration = before


def receive_without_quiet(world: TracedWorld, step: ObservedStep, message: Message) -> None:
    """Prefill's own step, but a write of each prompt that stops is not over yet: its Quiet comes later."""
    worker, before = step.worker, dict(world.prompts[step.worker])
    prefill.receive(world, worker, step.peer, message)
    quiets = [owed for owed in world.owed if owed[0] == worker and owed[2][0] == "Quiet"]
    if not quiets or any(owed[2][1] not in before for owed in quiets):
        raise NotHere("no prompt that writes has stopped")
    world.owed = tuple(owed for owed in world.owed if owed not in quiets)
    stopped = {owed[2][1]: before[owed[2][1]]._replace(phase="stopping") for owed in quiets}
    prefill.set_table(world, worker, {**dict(world.prompts[worker]), **stopped})


def no_room(world: World, worker: int, step: ObservedStep) -> None:
    at = dict(world.landings[worker]).get(0)
    if at is not None and at.phase == "open" and at.ticket == step.form[1]:
        world.send(worker, step.peer, "Later", step.form[1])


def refuse(world: World, worker: int, step: ObservedStep, answer: str) -> None:
    if dict(world.landings[worker]).get(0) is not None:
        drop(world, worker, 0)
    world.send(worker, GATEWAY, answer, step.form[1])
