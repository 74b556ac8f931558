"""The steps that the model's decode worker takes by itself: it decodes, prefills locally, repairs, refuses, reaps
and kills."""

from collections.abc import Iterator

from tests.protocol import faults
from tests.protocol.decode_pages import damaged, free_pages, set_page, stuck, valid
from tests.protocol.landing import Table, admit, drop, may_land, needs_page, resend, set_table
from tests.protocol.world import FREE, GATEWAY, LandingAt, PageAt, Violation, World

OPEN_PHASES = ("open", "waiting")


def steps(world: World, decode: int) -> Iterator[tuple[str, int]]:
    """(verb, request) or, for quarantined pages, (verb, page)."""
    table: Table = dict(world.landings[decode])
    for request, at in table.items():
        yield from ((verb, request) for verb in request_steps(world, decode, table, at))
    for page, entry in enumerate(world.pages[decode]):
        if entry.state == "quarantined" and world.configuration.transport == "shm":
            _, writer, incarnation, _ = entry.owner
            if world.known_dead(writer, incarnation):
                yield "reap", page
            elif world.configuration.may_kill and stuck(world, entry) and not world.broken(decode, writer):
                yield "kill", page


def request_steps(world: World, decode: int, table: Table, at: LandingAt) -> Iterator[str]:
    configuration, request = world.configuration, at.ticket[0]
    wanted, hungry = configuration.wanted[request], needs_page(world, at)
    if at.phase == "running":
        held_back = wanted.waits_for >= 0 and world.requests[wanted.waits_for].phase in OPEN_PHASES
        if not held_back and (not hungry or free_pages(world, decode) or victims(world, table, request)):
            yield "decode"
    if at.phase == "local" and len(free_pages(world, decode)) >= world.prompt_pages(request, at.base):
        yield "prefill"
    if at.phase == "landing" and not valid(world, decode, at) and may_repair(world, decode, at):
        yield "repair"
    if (at.phase in ("open", "local") or hungry) and not configuration.may_kill:
        left = sum(e.state != "quarantined" or not stuck(world, e) for e in world.pages[decode])
        if wanted.pages + bool(wanted.grows_at) > left:
            yield "refuse"


def may_repair(world: World, decode: int, at: LandingAt) -> bool:
    """Two-sided: by a timer after Commit, perhaps needlessly. Before Commit only what is known to be damaged."""
    if at.committed:
        moving = any(w.ticket == at.ticket for w in world.writes)
        return world.configuration.two_sided and (at.round == 0 or not moving)
    return at.round == 0 and world.configuration.early_repair and damaged(world, decode, at)


def victims(world: World, table: Table, request: int) -> list[int]:
    """Running requests that this one may preempt."""
    if not world.guarded("preempt"):
        return []
    any_other = not world.guarded("youngest")
    return [r for r, at in table.items() if at.phase == "running" and (r > request or (any_other and r != request))]


def step(world: World, decode: int, verb: str, which: int) -> None:
    if verb == "reap":
        set_page(world, decode, which, FREE)
        return
    if verb == "kill":
        faults.kill(world, world.pages[decode][which])
        return
    table = dict(world.landings[decode])
    if verb == "prefill":
        prefill_here(world, decode, table, which)
    elif verb == "repair":
        resend(world, decode, table, which)
    elif verb == "refuse":
        ticket = table[which].ticket
        drop(world, decode, table, which)
        world.send(decode, GATEWAY, "Full", ticket)
    else:
        decode_token(world, decode, table, which)
    set_table(world, decode, table)


def prefill_here(world: World, decode: int, table: Table, request: int) -> None:
    at = table[request]
    needed = world.prompt_pages(request, at.base)
    if may_land(world, decode, table, request, needed):
        pages = tuple(free_pages(world, decode)[:needed])
        for index, page in enumerate(pages):
            set_page(world, decode, page, PageAt("in use", (at.ticket,), (at.ticket, index)))
        admit(world, decode, table, request, at._replace(pages=pages))


def decode_token(world: World, decode: int, table: Table, request: int) -> None:
    """Reads every page, grows if it must, and emits the next token."""
    at = table[request]
    for index, page in enumerate(at.pages):
        entry = world.pages[decode][page]
        if entry.content != (at.source, index) or entry.state != "in use":
            raise Violation(f"decode reads page {index} of {at.ticket} and finds {tuple(entry)}")
    if needs_page(world, at):
        at = grow(world, decode, table, request)
    if at.position < world.configuration.wanted[request].tokens:
        world.send(decode, GATEWAY, "Tokens", at.ticket, at.position, at.base)
        at = at._replace(position=at.position + 1)
    table[request] = at
    if at.position >= world.configuration.wanted[request].tokens:
        drop(world, decode, table, request)


def grow(world: World, decode: int, table: Table, request: int) -> LandingAt:
    """One more page; if none is free, the youngest running request gives up its pages."""
    at = table[request]
    if not free_pages(world, decode):
        victim = (max if world.guarded("youngest") else min)(victims(world, table, request))
        world.send(decode, GATEWAY, "Lost", table[victim].ticket)
        drop(world, decode, table, victim)
    page = free_pages(world, decode)[0]
    set_page(world, decode, page, PageAt("in use", (at.ticket,), (at.source, len(at.pages))))
    return at._replace(pages=(*at.pages, page))
