"""The pages of the model's decode pool: the table "Page of the decode pool" of docs/protocol.md.

A page that a one-sided writer may still write is quarantined until proof; a two-sided frame that is half received when
its landing ends is drained into a sink."""

from tests.protocol.world import DAMAGED, FREE, LandingAt, PageAt, Ticket, World, replaced


def set_page(world: World, decode: int, page: int, at: PageAt) -> None:
    world.pages = replaced(world.pages, decode, replaced(world.pages[decode], page, at))


def free_pages(world: World, decode: int) -> list[int]:
    return [page for page, at in enumerate(world.pages[decode]) if at.state == "free"]


def fence(world: World, decode: int, at: LandingAt) -> None:
    """This attempt is over at decode. Its pages are free where no write can come, else quarantined."""
    for page in at.pages:
        entry = world.pages[decode][page]
        if entry.state == "landing" and world.guarded("quarantine") and not writer_is_silent(world, entry):
            set_page(world, decode, page, entry._replace(state="quarantined"))
        else:
            set_page(world, decode, page, FREE)
    if at.phase == "landing":
        sink(world, decode, at.ticket)
        world.send(decode, at.prefill, "Abort", at.ticket)


def writer_is_silent(world: World, entry: PageAt) -> bool:
    """Whether decode knows at once that no write to this landing page can still come."""
    if world.configuration.two_sided:
        return True
    return world.configuration.transport == "shm" and world.known_dead(*entry.owner[1:3])


def sink(world: World, decode: int, ticket: Ticket) -> None:
    """Drains frames of the ticket that are half received."""
    if world.guarded("sink"):
        world.writes = frozenset(w for w in world.writes if not (w.decode == decode and w.half and w.ticket == ticket))


def prove(
    world: World, decode: int, ticket: Ticket, *, incarnation: int | None = None, round_: int | None = None
) -> None:
    """Quiet (with an incarnation) or Commit (with a round) of the owner frees its quarantined pages."""
    for page, entry in enumerate(world.pages[decode]):
        if entry.state == "quarantined" and world.same_ticket(entry.owner[0], ticket):
            _, _, writer, owner_round = entry.owner
            right_writer = incarnation is None or writer == incarnation or not world.guarded("incarnation")
            right_round = round_ is None or owner_round == round_ or not world.guarded("resend_count")
            if right_writer and right_round:
                set_page(world, decode, page, FREE)


def valid(world: World, decode: int, at: LandingAt) -> bool:
    """Whether the checksums hold: every page has the right bytes of the right page of this prompt."""
    pages = world.pages[decode]
    return all(
        pages[page].content[1:] == (index,) and pages[page].content[0][0] == at.ticket[0]
        for index, page in enumerate(at.pages)
    )


def damaged(world: World, decode: int, at: LandingAt) -> bool:
    return any(world.pages[decode][page].content[1:] == (DAMAGED,) for page in at.pages)


def stuck(world: World, entry: PageAt) -> bool:
    """The owner of this page is a stopped process."""
    _, writer, incarnation, _ = entry.owner
    return (writer, incarnation) in world.zombies or world.processes[writer] == ("stopped", incarnation)
