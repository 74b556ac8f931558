"""Landings of the model's decode worker: how one begins, is admitted, repaired, lost or given back.

Pages are handed out all or none, after what running requests need next. A request that got Later keeps its place: one
younger request may land before it, then none."""

from tests.protocol.decode_pages import fence, free_pages, set_page, sink, valid
from tests.protocol.world import FREE, GATEWAY, LandingAt, PageAt, Ticket, Violation, World, WriteInFlight, replaced

Table = dict[int, LandingAt]
MOST_PASSED = 1  # younger requests that may land before one that got Later


def set_table(world: World, decode: int, table: Table) -> None:
    world.landings = replaced(world.landings, decode, tuple(sorted(table.items())))


def drop(world: World, decode: int, table: Table, request: int) -> None:
    fence(world, decode, table.pop(request))


def lose(world: World, decode: int, table: Table, request: int) -> None:
    at = table[request]
    fence(world, decode, at)
    table[request] = at._replace(phase="lost", pages=(), round=0, committed=False)
    if world.guarded("lost"):
        world.send(decode, GATEWAY, "Lost", at.ticket)


def give_back(world: World, decode: int, table: Table, request: int) -> None:
    """Prefill has declined its landing."""
    at = table[request]
    sink(world, decode, at.ticket)
    for page in at.pages:
        set_page(world, decode, page, FREE)
    table[request] = at._replace(phase="open", pages=(), round=0, committed=False)


def admit(world: World, decode: int, table: Table, request: int, at: LandingAt) -> None:
    sink(world, decode, at.ticket)
    for page in at.pages:
        set_page(world, decode, page, world.pages[decode][page]._replace(state="in use"))
    skipped = 1 if at.committed and not world.guarded("first") else 0
    table[request] = at._replace(phase="running", position=at.base + skipped, source=at.ticket)
    if at.prefill:
        world.send(decode, at.prefill, "Landed", at.ticket)


# ---- who may have pages


def needs_page(world: World, at: LandingAt) -> bool:
    """The next token of this running request needs a further page."""
    wanted = world.configuration.wanted[at.ticket[0]]
    return bool(
        wanted.grows_at and at.phase == "running" and at.position >= wanted.grows_at and len(at.pages) == wanted.pages
    )


def may_land(world: World, decode: int, table: Table, request: int, pages: int) -> bool:
    """Decide, and count whom this landing passes; a request that is refused ages from then on."""
    growth = sum(needs_page(world, at) for at in table.values()) if world.guarded("growth") else 0
    allowed = len(free_pages(world, decode)) >= pages + growth
    older = [(r, at) for r, at in table.items() if r < request and at.phase in ("open", "local")]
    if world.guarded("ageing") and any(at.passed >= MOST_PASSED for _, at in older):
        allowed = False
    if not allowed:
        table[request] = table[request]._replace(passed=max(0, table[request].passed))
        return False
    for other, at in older:
        if at.passed >= 0:
            table[other] = at._replace(passed=at.passed + 1)
            if at.passed + 1 > MOST_PASSED:
                raise Violation("an older request is passed again and again")
    return True


def ready(world: World, decode: int, table: Table, prefill: int, ticket: Ticket) -> None:
    at = table.get(ticket[0])
    if at is None or at.ticket[2] != ticket[2] or at.ticket[1] < ticket[1]:  # Ready has overtaken its Open
        world.send(decode, prefill, "Later" if world.guarded("early") else "Abort", ticket)
    elif at.ticket[1] > ticket[1] or at.phase == "lost":
        world.send(decode, prefill, "Abort", ticket)
    elif at.phase == "running":
        world.send(decode, prefill, "Landed", ticket)
    elif at.phase == "landing":
        world.send(decode, prefill, "Landing", ticket, at.pages, world.incarnation(decode))
    else:
        land(world, decode, table, prefill, at)


def land(world: World, decode: int, table: Table, prefill: int, at: LandingAt) -> None:
    ticket = at.ticket
    lacking = world.prompt_pages(ticket[0], at.base) - len(at.pages)
    if may_land(world, decode, table, ticket[0], lacking):
        pages = at.pages + tuple(free_pages(world, decode)[:lacking])
        for page in pages:
            owner = (ticket, prefill, world.incarnation(prefill), 0)
            set_page(world, decode, page, PageAt("landing", owner, ()))
        table[ticket[0]] = at._replace(phase="landing", pages=pages)
        world.send(decode, prefill, "Landing", ticket, pages, world.incarnation(decode))
        return
    if not world.guarded("whole"):  # it takes what there is and waits for the rest
        some = tuple(free_pages(world, decode)[:lacking])
        for page in some:
            set_page(world, decode, page, PageAt("in use", (ticket,), ()))
        table[ticket[0]] = table[ticket[0]]._replace(pages=at.pages + some)
    world.send(decode, prefill, "Later", ticket)


# ---- bytes arrive


def resend(world: World, decode: int, table: Table, request: int) -> None:
    """Asks prefill to write the first bad page again; from now on only a Commit of the new round counts."""
    at = table[request]
    pages = world.pages[decode]
    bad = next(index for index, page in enumerate(at.pages) if pages[page].content != (at.ticket, index))
    for page in at.pages:
        entry = world.pages[decode][page]
        set_page(world, decode, page, entry._replace(owner=(*entry.owner[:3], at.round + 1)))
    table[request] = at._replace(round=at.round + 1, committed=False)
    world.send(decode, at.prefill, "Resend", at.ticket, bad, at.round + 1)


def write_lands(world: World, write: WriteInFlight) -> None:
    """A write, or one half of a frame, reaches decode."""
    decode, ticket = write.decode, write.ticket
    at = dict(world.landings[decode]).get(ticket[0])
    world.writes -= {write}
    if world.configuration.two_sided and not write.half:  # decode begins to receive: it matches the frame or drains it
        if at and at.phase == "landing" and world.same_ticket(at.ticket, ticket):
            world.writes |= {write._replace(page=at.pages[write.index], half=True)}
        return
    entry = world.pages[decode][write.page]
    taken_over = world.configuration.two_sided and not world.guarded("fence")
    if entry.state not in ("landing", "quarantined") or (entry.owner[0] != ticket and not taken_over):
        raise Violation(f"a late write of {ticket} hits a page that is {entry.state} for {entry.owner[:1]}")
    set_page(world, decode, write.page, entry._replace(content=(ticket, write.index)))
    if world.configuration.two_sided and at and at.committed and at.phase == "landing" and valid(world, decode, at):
        table = dict(world.landings[decode])
        admit(world, decode, table, ticket[0], at)
        set_table(world, decode, table)
