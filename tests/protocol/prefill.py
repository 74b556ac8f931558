"""The prefill worker of the model: the table "Prompt at prefill" of docs/protocol.md.

It reserves nothing while a prompt waits for its Landing. Quiet says that no write of the ticket is in flight, so it
waits for the last one."""

from collections.abc import Iterator

from tests.protocol.world import BROKEN, GATEWAY, REGISTER, Message, PromptAt, Ticket, World, WriteInFlight, replaced

Table = dict[Ticket, PromptAt]


def set_table(world: World, prefill: int, table: Table) -> None:
    world.prompts = replaced(world.prompts, prefill, tuple(sorted(table.items())))


def own_pages_taken(world: World, table: Table) -> int:
    return sum(world.prompt_pages(t[0], at.base) for t, at in table.items() if at.phase not in ("queued", "asked"))


def quiet(world: World, prefill: int, decode: int, ticket: Ticket) -> None:
    world.send(prefill, decode, "Quiet", ticket, world.incarnation(prefill))


def stop(world: World, prefill: int, table: Table, ticket: Ticket, *, aborted: bool = False) -> None:
    """The prompt is over here. Quiet goes out once no write of the ticket is in flight."""
    at = table.pop(ticket)
    if not world.configuration.two_sided and world.write_in_flight(prefill, ticket):
        table[ticket] = at._replace(phase="stopping")
    elif aborted or at.phase in ("pushing", "held", "stopping"):
        quiet(world, prefill, at.decode, ticket)


def receive(world: World, prefill: int, sender: int, message: Message) -> None:
    table = dict(world.prompts[prefill])
    if message == BROKEN:
        if sender == GATEWAY:
            for ticket in list(table):
                stop(world, prefill, table, ticket)
            world.send(prefill, GATEWAY, *REGISTER)
        else:
            decode_lost(world, prefill, table, sender)
    elif sender == GATEWAY:
        receive_from_gateway(world, prefill, table, message)
    else:
        receive_from_decode(world, prefill, table, sender, message)
    set_table(world, prefill, table)


def receive_from_gateway(world: World, prefill: int, table: Table, message: Message) -> None:
    if message[0] == "Prefill":
        _, ticket, decode, base = message
        for older in [t for t in table if t[0] == ticket[0]]:
            stop(world, prefill, table, older)
        table[ticket] = PromptAt("queued", decode, base, 0, (), 0, 0)
    else:
        _, request, run, attempt = message
        for ticket in [t for t in table if t[0] == request and t[2] == run and t[1] <= attempt]:
            stop(world, prefill, table, ticket)


def decode_lost(world: World, prefill: int, table: Table, decode: int) -> None:
    for ticket, at in list(table.items()):
        if at.decode == decode and at.phase in ("queued", "asked"):
            table[ticket] = at._replace(phase="queued")
        elif at.decode == decode:
            del table[ticket]
            if at.phase == "pushing" and world.guarded("failed"):
                world.send(prefill, GATEWAY, "Lost", ticket)


def receive_from_decode(world: World, prefill: int, table: Table, decode: int, message: Message) -> None:
    name, ticket = message[0], message[1]
    at = table.get(ticket)
    if name == "Later" and at and at.phase == "asked":
        table[ticket] = at._replace(phase="queued")
    elif name == "Landing":
        land(world, prefill, table, decode, message)
    elif name == "Landed" and at:
        del table[ticket]
    elif name == "Abort" and (at or world.guarded("requiet")):
        table[ticket] = at or PromptAt("stopping", decode, 0, 0, (), 0, 0)
        stop(world, prefill, table, ticket, aborted=True)
    elif name == "Resend":
        _, _, index, round_ = message
        if at and at.phase in ("pushing", "held"):
            table[ticket] = at = at._replace(phase="pushing", round=round_)
            post(world, prefill, ticket, at, index)
        elif at is None:
            quiet(world, prefill, decode, ticket)


def land(world: World, prefill: int, table: Table, decode: int, message: Message) -> None:
    _, ticket, pages, pool = message
    at = table.get(ticket)
    if at is None:
        if world.guarded("requiet"):
            quiet(world, prefill, decode, ticket)
    elif at.phase in ("asked", "queued"):
        needed = own_pages_taken(world, table) + world.prompt_pages(ticket[0], at.base)
        if needed <= world.configuration.prefill_pages:
            table[ticket] = at._replace(phase="pushing", landing=pages, pool=pool)
        else:  # the own pool has filled meanwhile: the landing goes back, and the prompt asks again later
            table[ticket] = at._replace(phase="queued")
            quiet(world, prefill, decode, ticket)


def post(world: World, prefill: int, ticket: Ticket, at: PromptAt, index: int) -> None:
    """A write leaves, unless this end can know that it reaches nobody's memory."""
    mapped = at.pool == world.incarnation(at.decode) or not world.guarded("handle")
    lost = world.configuration.two_sided and world.broken(prefill, at.decode)
    if mapped and world.up_or_stopped(at.decode) and not lost:
        page = at.landing[index]
        world.writes |= {
            WriteInFlight(prefill, world.incarnation(prefill), at.decode, page, False, ticket, index, at.round)
        }


def steps(world: World, prefill: int) -> Iterator[tuple[str, Ticket]]:
    """Steps that the worker may take by itself now."""
    table: Table = dict(world.prompts[prefill])
    taken, oldest = own_pages_taken(world, table), min(table, default=None)
    for ticket, at in table.items():
        needed = world.prompt_pages(ticket[0], at.base)
        fits = taken + needed <= world.configuration.prefill_pages
        second_ready = not world.guarded("one_ready") and at.phase == "asked" and not world.stream(prefill, at.decode)
        if second_ready or (at.phase == "queued" and fits and (world.guarded("later") or ticket == oldest)):
            yield "ask", ticket
        elif at.phase == "pushing" and at.pushed < needed:
            yield "push", ticket
        elif at.phase == "pushing" and (world.configuration.two_sided or not world.write_in_flight(prefill, ticket)):
            yield "commit", ticket
        elif at.phase == "stopping" and not world.write_in_flight(prefill, ticket):
            yield "quiet", ticket


def step(world: World, prefill: int, verb: str, ticket: Ticket) -> None:
    table = dict(world.prompts[prefill])
    at = table[ticket]
    if verb == "ask":
        table[ticket] = at._replace(phase="asked")
        world.send(prefill, at.decode, "Ready", ticket)
    elif verb == "push":
        post(world, prefill, ticket, at, at.pushed)
        table[ticket] = at._replace(pushed=at.pushed + 1)
        if at.pushed + 1 == world.prompt_pages(ticket[0], at.base):
            world.send(prefill, GATEWAY, "Tokens", ticket, at.base, at.base)
    elif verb == "commit":
        table[ticket] = at._replace(phase="held")
        world.send(prefill, at.decode, "Commit", ticket, at.round)
    else:
        del table[ticket]
        quiet(world, prefill, at.decode, ticket)
    set_table(world, prefill, table)
