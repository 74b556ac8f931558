"""Faults: processes crash, stop, thaw and are replaced, streams break, frames are lost, bytes are damaged.

`offered` lists the faults that can happen in a state; tests/protocol/explore.py takes as many of them as the
configuration's budget allows."""

from collections.abc import Callable, Iterator
from typing import Any

from tests.protocol import gateway, landing
from tests.protocol.decode_pages import set_page
from tests.protocol.world import BROKEN, DAMAGED, FREE, GATEWAY, REGISTER, PageAt, World, WriteInFlight, replaced

Fault = tuple[str, str, Callable[..., None], tuple[Any, ...]]  # kind, label, what happens, to whom


def break_stream(world: World, one: int, other: int, late: bool = False) -> None:
    """Each end notices in its own time. `late`: what is under way still arrives before that."""
    for sender, receiver in ((one, other), (other, one)):
        under_way = world.stream(sender, receiver) if late else ()
        world.set_stream(sender, receiver, (*under_way, BROKEN) if world.up_or_stopped(receiver) else ())
    if world.configuration.two_sided:
        world.writes = frozenset(w for w in world.writes if {w.prefill, w.decode} != {one, other})


def crash(world: World, worker: int) -> None:
    incarnation = world.incarnation(worker)
    world.set_process(worker, "dead", incarnation)
    if world.configuration.transport != "rdma":  # a network card may still send
        world.writes = frozenset(w for w in world.writes if (w.prefill, w.incarnation) != (worker, incarnation))
    for peer in world.peers(worker):
        break_stream(world, worker, peer)
    if world.is_prefill(worker):
        world.prompts = replaced(world.prompts, worker, ())
    else:
        world.landings = replaced(world.landings, worker, ())
        world.pages = replaced(world.pages, worker, (FREE,) * world.configuration.pool_pages)
        world.writes = frozenset(w for w in world.writes if w.decode != worker)


def kill(world: World, entry: PageAt) -> None:
    """Decode kills the silent writer of a quarantined page by its pidfd."""
    _, writer, incarnation, _ = entry.owner
    if (writer, incarnation) in world.zombies:
        world.zombies -= {(writer, incarnation)}
        world.writes = frozenset(w for w in world.writes if (w.prefill, w.incarnation) != (writer, incarnation))
    else:
        crash(world, writer)


def stop(world: World, worker: int) -> None:
    world.set_process(worker, "stopped", world.incarnation(worker))


def thaw(world: World, worker: int) -> None:
    world.set_process(worker, "up", world.incarnation(worker))


def start_new_process(world: World, worker: int) -> None:
    """A new process at the same address; a stopped old one lives on as a zombie."""
    state, incarnation = world.processes[worker]
    if state == "stopped":
        world.zombies |= {(worker, incarnation)}
    world.set_process(worker, "up", incarnation + 1)
    world.prompts = replaced(world.prompts, worker, ())
    for peer in world.peers(worker):
        break_stream(world, worker, peer, late=True)
        world.set_stream(peer, worker, ())
    world.set_stream(worker, GATEWAY, (*world.stream(worker, GATEWAY), REGISTER))


def restart_gateway(world: World) -> None:
    """The gateway forgets its attempts; clients come back with what they have."""
    world.gateway_run += 1
    world.usable = (False,) * world.workers
    for request, at in enumerate(world.requests):
        if at.phase in gateway.OPEN_PHASES:
            gateway.set_request(world, request, phase="waiting", attempt=0, prefill=0, decode=0, handed=False)
    for worker in world.peers(GATEWAY):
        break_stream(world, GATEWAY, worker)
        world.set_stream(worker, GATEWAY, ())


def lose_frame(world: World, write: WriteInFlight) -> None:
    world.writes -= {write}


def lose_landing(world: World, decode: int, request: int) -> None:
    """The progress timer of a landing runs out."""
    table = dict(world.landings[decode])
    landing.lose(world, decode, table, request)
    landing.set_table(world, decode, table)


def offered(world: World) -> Iterator[Fault]:
    for worker in world.peers(GATEWAY):
        yield from process_faults(world, worker)
    for request, at in enumerate(world.requests):
        if at.phase in gateway.OPEN_PHASES:
            yield "cancel", "CANCEL", gateway.end, (request, "cancelled")
        if at.phase == "open" and at.shown:
            yield "client is behind", "CLIENT IS BEHIND", gateway.pause, (request,)
    for decode in world.setting.decodes:
        if world.up(decode):
            for request, at in world.landings[decode]:
                if at.phase == "landing":
                    yield "no progress", "NO PROGRESS", lose_landing, (decode, request)
        for page, entry in enumerate(world.pages[decode]):
            if entry.state == "landing" and entry.content and entry.content[1] != DAMAGED:
                damaged = entry._replace(content=(entry.content[0], DAMAGED))
                yield "damage", "DAMAGE", set_page, (decode, page, damaged)
    for write in world.writes:
        yield "frame lost", "FRAME LOST", lose_frame, (write,)
    yield "gateway restarts", "GATEWAY RESTARTS", restart_gateway, ()


def process_faults(world: World, worker: int) -> Iterator[Fault]:
    tier = "prefill" if world.is_prefill(worker) else "decode"
    state = world.processes[worker][0]
    if state == "up":
        yield f"{tier} stops", "STOP", stop, (worker,)
    if state != "dead":
        yield f"{tier} crashes", "CRASH", crash, (worker,)
    if state == "dead":
        yield "restart", "NEW PROCESS", start_new_process, (worker,)
    elif state == "stopped" and tier == "prefill":
        yield "replacement", "NEW PROCESS", start_new_process, (worker,)
    for peer in world.peers(worker):
        both_up = world.up(peer) and state == "up"
        if peer < worker and both_up and not world.broken(worker, peer) and not world.broken(peer, worker):
            kind = f"gateway-{tier} stream breaks" if peer == GATEWAY else "kv stream breaks"
            yield kind, "BREAK", break_stream, (worker, peer)
            if world.stream(worker, peer) or world.stream(peer, worker):
                yield kind, "BREAK, LATE", break_stream, (worker, peer, True)
