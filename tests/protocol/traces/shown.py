"""The steps of a worker's own that a sent message shows, though no received one asked for it.

Those of the model stand beside those that the environment causes (`ENVIRONMENT`): other requests, clients, operators,
timers and damaged bytes."""

from collections.abc import Iterator

from tests.protocol import decode_steps, faults, gateway, landing, prefill
from tests.protocol.decode_pages import set_page
from tests.protocol.traces.environment import MOST_REPAIRS, Act, drop, may_commit, session_over, stop
from tests.protocol.traces.projecting import ObservedStep
from tests.protocol.traces.traced_world import TracedWorld
from tests.protocol.world import DAMAGED, GATEWAY, LandingAt, Ticket, World


def shown_steps(world: TracedWorld, step: ObservedStep) -> Iterator[Act]:
    """The steps of the sender that may have led to this message, though no received one asked for it."""
    if step.worker == GATEWAY:
        yield from shown_gateway_steps(world, step.form[0])
    elif world.is_prefill(step.worker):
        yield from shown_prefill_steps(world, step)
    else:
        yield from shown_decode_steps(world, step)


def shown_gateway_steps(world: TracedWorld, kind: str) -> Iterator[Act]:
    at = world.requests[0]
    following = world.around.projection.routes.get(at.attempt + 1)
    # its turn
    if at.phase in ("waiting", "paused") or (at.phase == "open" and world.around.may_move(world)):
        for same_prefill in (False, True):
            yield lambda w, s=same_prefill: raise_to(w, following, same_prefill=s)  # type: ignore[misc]
    if kind == "Cancel" and at.phase == "open":
        yield lambda w: gateway.end(w, 0, "cancelled")  # client
        yield lambda w: gateway.pause(w, 0)  # client


def raise_to(world: TracedWorld, route: tuple[int, int] | None, *, same_prefill: bool) -> None:
    world.routed = route
    gateway.raise_attempt(world, 0, same_prefill=same_prefill)


def shown_prefill_steps(world: TracedWorld, step: ObservedStep) -> Iterator[Act]:
    worker, kind, ticket = step.worker, step.form[0], step.form[1]
    at = dict(world.prompts[worker]).get(ticket)
    if at is None:
        if kind == "Quiet" and not world.write_in_flight(worker, ticket):  # quiet again
            if world.around.projection.routes.get(ticket[1], (0, 0))[1] == worker:
                yield lambda w: w.send(worker, step.peer, *step.form)
        return
    if kind == "Ready" and at.phase == "queued":
        yield lambda w: prefill.step(w, worker, "ask", ticket)
    elif kind == "Tokens" and at.phase == "pushing":
        yield lambda w: first_token(w, worker, ticket)
    elif kind == "Commit" and may_commit(world, worker, ticket, at):
        yield lambda w: prefill.step(w, worker, "commit", ticket)
    elif kind == "Quiet" and at.phase == "stopping" and not world.write_in_flight(worker, ticket):
        yield lambda w: prefill.step(w, worker, "quiet", ticket)
    elif kind == "Quiet" and world.around.projection.timed:  # deadline
        yield lambda w: stop(w, worker, ticket)
    elif kind == "Lost" and at.phase in LOST_AT_PREFILL.get(step.reason, ()):  # given up
        yield lambda w: lose(w, worker, ticket, step.reason)


LOST_AT_PREFILL = {
    "too_large": ("queued",),
    "late": ("queued",),
    "grammar": ("queued", "asked", "pushing"),
    "failed": ("queued", "pushing"),
    "cannot_push": ("queued", "pushing"),
}


def first_token(world: World, worker: int, ticket: Ticket) -> None:
    table = dict(world.prompts[worker])
    at = table[ticket]
    if at.pushed == 1:
        table[ticket] = at._replace(pushed=2)
        prefill.set_table(world, worker, table)
        world.send(worker, GATEWAY, "Tokens", ticket, at.base, at.base)


def lose(world: World, worker: int, ticket: Ticket, reason: str) -> None:
    """Prefill reports Lost. After a write that failed no Quiet follows: the session ends."""
    world.send(worker, GATEWAY, "Lost", ticket)
    table = dict(world.prompts[worker])
    if reason == "cannot_push":  # write fails
        del table[ticket]
    else:
        prefill.stop(world, worker, table, ticket)
    prefill.set_table(world, worker, table)


def shown_decode_steps(world: TracedWorld, step: ObservedStep) -> Iterator[Act]:
    worker, kind = step.worker, step.form[0]
    for prefill_worker in world.setting.prefills:
        if (worker, prefill_worker) in world.ended:
            for proof in (False, True):
                yield lambda w, p=prefill_worker, s=proof: session_over(w, worker, p, proof=s)  # type: ignore[misc]
    at = dict(world.landings[worker]).get(0)
    if kind == "Abort":  # asks again
        if any(entry.state == "quarantined" and entry.owner[0] == step.form[1] for entry in world.pages[worker]):
            yield lambda w: w.send(worker, step.peer, *step.form)
    if at is None:
        return
    if kind == "Tokens" and at.phase == "running":
        yield lambda w: decode_steps.step(w, worker, "decode", 0)
    elif kind == "Landed" and at.phase == "landing":
        for write in world.writes:
            yield lambda w, write=write: landing.write_lands(w, write)  # type: ignore[misc]
    elif kind == "Resend" and at.phase == "landing" and at.round < MOST_REPAIRS:
        yield lambda w: repair(w, worker)
    elif kind in ("Lost", "Abort", "Full"):
        yield from ends_at_decode(worker, at, step)


def ends_at_decode(worker: int, at: LandingAt, step: ObservedStep) -> Iterator[Act]:
    kind, reason = step.form[0], step.reason
    if at.phase == "landing" and (kind == "Abort" or reason == "no_progress"):  # no progress
        yield lambda w: faults.lose_landing(w, worker, 0)
    if kind == "Lost" and at.phase in LOST_AT_DECODE.get(reason, ()):
        yield lambda w: report_and_drop(w, worker, "Lost")
    if kind == "Full" and (at.phase in ("open", "local") or at.phase == "running"):
        yield lambda w: report_and_drop(w, worker, "Full")
    if kind == "Abort":  # deadline: its landing is fenced
        yield lambda w: drop(w, worker, 0) if w.around.projection.timed else None


LOST_AT_DECODE = {
    "preempted": ("running",),
    "late": ("local",),
    "failed": ("running", "local"),
    "grammar": ("open", "local", "landing", "running"),
}


def repair(world: World, worker: int) -> None:
    """A span is damaged or missing: decode asks for it again."""
    table = dict(world.landings[worker])
    page = table[0].pages[0]
    set_page(world, worker, page, world.pages[worker][page]._replace(content=(table[0].ticket, DAMAGED)))
    landing.resend(world, worker, table, 0)
    landing.set_table(world, worker, table)


def report_and_drop(world: World, worker: int, kind: str) -> None:
    ticket = dict(world.landings[worker])[0].ticket
    world.send(worker, GATEWAY, kind, ticket)
    drop(world, worker, 0)
