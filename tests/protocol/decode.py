"""The decode worker of the model: the table "Landing at decode" of docs/protocol.md.

Here are the messages that decode receives. How a landing begins, fills and ends is in tests/protocol/landing.py, what
the worker does by itself in tests/protocol/decode_steps.py."""

from tests.protocol import landing
from tests.protocol.decode_pages import fence, prove, set_page, valid
from tests.protocol.landing import Table, set_table
from tests.protocol.world import BROKEN, FREE, GATEWAY, REGISTER, LandingAt, Message, PageAt, Ticket, World, replaced


def receive(world: World, decode: int, sender: int, message: Message) -> None:
    table = dict(world.landings[decode])
    if message == BROKEN:
        if sender == GATEWAY:
            for request in list(table):
                landing.drop(world, decode, table, request)
            world.send(decode, GATEWAY, *REGISTER)
        else:
            prefill_lost(world, decode, table, sender)
    elif message[0] == "Open":
        open_(world, decode, table, message)
    elif message[0] == "Cancel":
        _, request, run, attempt = message
        at = table.get(request)
        if at and at.ticket[2] == run and at.ticket[1] <= attempt:
            landing.drop(world, decode, table, request)
    elif message[0] == "Ready":
        landing.ready(world, decode, table, sender, message[1])
    elif message[0] == "Commit":
        commit(world, decode, table, message)
    elif message[0] == "Quiet":
        quiet(world, decode, table, message)
    set_table(world, decode, table)


# ---- a session with prefill ends


def prefill_lost(world: World, decode: int, table: Table, prefill: int) -> None:
    transport = world.configuration.transport
    if transport == "rdma" and world.guarded("key"):
        destroy_key(world, decode, prefill)
    for request, at in list(table.items()):
        if at.phase == "landing" and at.prefill == prefill:
            _, writer, incarnation, _ = world.pages[decode][at.pages[0]].owner
            silent = transport != "shm" or world.known_dead(writer, incarnation) or not world.guarded("proof")
            trusted = not world.guarded("lastproof") and at.round == 0
            if (silent or trusted) and valid(world, decode, at):
                landing.admit(world, decode, table, request, at)  # prefill died after its last page
            else:
                landing.lose(world, decode, table, request)
    for page, entry in enumerate(world.pages[decode]):
        if entry.state == "quarantined" and entry.owner[1] == prefill:
            ticket, writer, incarnation, _ = entry.owner
            if transport == "rdma" or not world.guarded("proof") or world.known_dead(writer, incarnation):
                set_page(world, decode, page, FREE)
            elif world.guarded("requiet"):
                world.send(decode, prefill, "Abort", ticket)


def destroy_key(world: World, decode: int, prefill: int) -> None:
    """The key of this session is destroyed: nothing written with it can reach the pool any more."""
    world.writes = frozenset(w for w in world.writes if not (w.prefill == prefill and w.decode == decode))
    prompts = tuple((t, at._replace(pool=-1) if at.decode == decode else at) for t, at in world.prompts[prefill])
    world.prompts = replaced(world.prompts, prefill, prompts)
    under_way = tuple((*m[:3], -1) if m[0] == "Landing" else m for m in world.stream(decode, prefill))
    world.set_stream(decode, prefill, under_way)


# ---- the gateway opens an attempt


def open_(world: World, decode: int, table: Table, message: Message) -> None:
    _, ticket, prefill, base = message
    request, at = ticket[0], table.get(ticket[0])
    wanted = world.configuration.wanted[request]
    fresh = LandingAt(ticket, "open" if prefill else "local", prefill, base, base, (), 0, False, -1, ())
    if at and at.phase == "running":  # it has the pages and goes on under the new attempt
        table[request] = at._replace(ticket=ticket, base=base, position=base, prefill=prefill)
    elif at and (not world.guarded("fence") or (at.phase == "landing" and not world.guarded("fresh"))):
        keep_pages(world, decode, table, fresh)
    elif at:
        fence(world, decode, at)
        table[request] = fresh._replace(passed=at.passed)
    elif world.guarded("count") and wanted.pages + bool(wanted.grows_at) > world.configuration.pool_pages:
        world.send(decode, GATEWAY, "Full", ticket)
    else:
        table[request] = fresh


def keep_pages(world: World, decode: int, table: Table, fresh: LandingAt) -> None:
    """Without [fence] or [fresh]: the new attempt takes over the old one's pages."""
    ticket, prefill = fresh.ticket, fresh.prefill
    at = table[ticket[0]]
    for page in at.pages:
        owner = (ticket, prefill, world.incarnation(prefill), 0)
        state = "landing" if prefill else "in use"
        set_page(world, decode, page, PageAt(state, owner, (ticket, at.pages.index(page))))
    phase = at.phase if prefill else "running"
    table[ticket[0]] = at._replace(ticket=ticket, prefill=prefill, base=fresh.base, phase=phase, source=ticket)


# ---- prefill ends a landing


def landing_of(world: World, table: Table, ticket: Ticket) -> LandingAt | None:
    at = table.get(ticket[0])
    return at if at and at.phase == "landing" and world.same_ticket(at.ticket, ticket) else None


def commit(world: World, decode: int, table: Table, message: Message) -> None:
    _, ticket, round_ = message
    at = landing_of(world, table, ticket)
    if at is None:
        prove(world, decode, ticket, round_=round_)
    elif round_ == at.round or not world.guarded("resend_count"):
        table[ticket[0]] = at = at._replace(committed=True)
        if valid(world, decode, at) or not world.guarded("checksum"):
            landing.admit(world, decode, table, ticket[0], at)
        elif not world.configuration.two_sided:
            landing.resend(world, decode, table, ticket[0])


def quiet(world: World, decode: int, table: Table, message: Message) -> None:
    _, ticket, incarnation = message
    prove(world, decode, ticket, incarnation=incarnation)
    at = landing_of(world, table, ticket)
    if at is None:
        return
    if at.round and not at.committed:  # a repair that prefill cannot serve: decode computes the pages itself
        for index, page in enumerate(at.pages):
            set_page(world, decode, page, world.pages[decode][page]._replace(content=(at.ticket, index)))
        landing.admit(world, decode, table, ticket[0], at)
    else:
        landing.give_back(world, decode, table, ticket[0])
