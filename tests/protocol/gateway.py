"""The gateway of the model: the table "Request at the gateway" of docs/protocol.md.

It alone raises attempts. Every token carries its ticket and position, and only the next position of the current ticket
reaches the client."""

from tests.protocol.world import BROKEN, GATEWAY, Message, Violation, World, replaced

OPEN_PHASES = ("open", "waiting", "paused")


def set_request(world: World, request: int, **changes: object) -> None:
    world.requests = replaced(world.requests, request, world.requests[request]._replace(**changes))


def end(world: World, request: int, phase: str) -> None:
    """The request ends, and its workers receive Cancel."""
    at = world.requests[request]
    set_request(world, request, phase=phase)
    for worker in (at.prefill, at.decode):
        if worker and world.usable[worker] and (phase != "done" or world.guarded("retire")):
            cancel(world, worker, request)


def cancel(world: World, worker: int, request: int) -> None:
    world.send(GATEWAY, worker, "Cancel", request, world.gateway_run, world.requests[request].attempt)


def raise_attempt(world: World, request: int, *, same_prefill: bool = False) -> None:
    """Open a new attempt on the next candidates. `same_prefill`: the old prefill worker is not to blame, and it may
    still hold the pages."""
    configuration, at = world.configuration, world.requests[request]
    candidates = [d for d in world.setting.decodes if not at.refused >> d & 1]
    if not candidates:
        end(world, request, "error")
        return
    decode, prefill = choose(world, request, [d for d in candidates if world.usable[d]], same_prefill)
    for old, new in ((at.prefill, prefill), (at.decode, decode)):
        if old and old != new and world.usable[old]:
            cancel(world, old, request)
    if not decode:
        if at.prefill and at.prefill == prefill and world.usable[prefill]:
            cancel(world, prefill, request)
        set_request(world, request, phase="waiting", prefill=0, decode=0)
        return
    if at.attempt + 1 > configuration.most_attempts:
        raise Violation("attempts without end")
    ticket, base = (request, at.attempt + 1, world.gateway_run), len(at.shown)
    set_request(
        world, request, phase="open", attempt=ticket[1], base=base, prefill=prefill, decode=decode, handed=False
    )
    world.send(GATEWAY, decode, "Open", ticket, prefill, base)
    if prefill:
        world.send(GATEWAY, prefill, "Prefill", ticket, decode, base)


def choose(world: World, request: int, usable: list[int], same_prefill: bool) -> tuple[int, int]:
    """The decode and the prefill worker of the next attempt; 0: none."""
    if (route := world.route(request, usable)) is not None:
        return route
    decode = choose_decode(world, request, usable)
    return decode, choose_prefill(world, request, decode, same_prefill)


def choose_decode(world: World, request: int, usable: list[int]) -> int:
    """The first attempt goes where the configuration wants it; later ones keep their decode worker if they can."""
    at = world.requests[request]
    first = world.configuration.prefills + world.configuration.wanted[request].decode
    if at.attempt == 0 and first in usable:
        return first
    return at.decode if at.decode in usable else usable[0] if usable else 0


def choose_prefill(world: World, request: int, decode: int, same_prefill: bool) -> int:
    """After a failure the old worker comes last (first, if it is not to blame); without any worker decode prefills."""
    at, first = world.requests[request], world.configuration.wanted[request].prefill
    usable = [p for p in world.setting.prefills if world.usable[p]]
    if at.attempt == 0 and decode:
        return first if first in usable or not first else (usable or [0])[0]
    if world.configuration.local_retry:
        return 0
    return min(usable, key=lambda p: ((p == at.prefill) != same_prefill, p < at.prefill), default=0)


def pause(world: World, request: int) -> None:
    """The client is behind: the workers forget the request until it has read on."""
    at = world.requests[request]
    for worker in (at.prefill, at.decode):
        if worker and world.usable[worker]:
            cancel(world, worker, request)
    set_request(world, request, phase="paused", prefill=0, decode=0)


def receive(world: World, worker: int, message: Message) -> None:
    if message == BROKEN:
        world.usable = replaced(world.usable, worker, False)
        for request, at in enumerate(world.requests):
            if at.phase == "open" and (at.decode == worker or (at.prefill == worker and not at.handed)):
                raise_attempt(world, request, same_prefill=at.decode == worker)
    elif message[0] == "Register":
        world.usable = replaced(world.usable, worker, True)
        for request, at in enumerate(world.requests):
            if at.phase == "waiting":
                raise_attempt(world, request)
    else:
        receive_report(world, worker, message)


def receive_report(world: World, worker: int, message: Message) -> None:
    """Tokens, Lost or Full. Reports of old tickets are dropped."""
    name, (request, attempt, run) = message[0], message[1]
    at = world.requests[request]
    this_run = run == world.gateway_run
    current = this_run and attempt == at.attempt
    any_attempt = name == "Tokens" and this_run and not world.guarded("attempt")
    if at.phase != "open" or not (current or any_attempt):
        return
    if name == "Tokens":
        show(world, worker, message, current)
    elif name == "Lost":
        raise_attempt(world, request)
    else:
        set_request(world, request, refused=at.refused | 1 << worker)
        raise_attempt(world, request, same_prefill=True)


def show(world: World, worker: int, message: Message, current: bool) -> None:
    _, (request, attempt, _), position, base = message
    if current and not world.is_prefill(worker):
        set_request(world, request, handed=True)  # at any position: decode has the request
    at = world.requests[request]
    if position != len(at.shown):
        if world.guarded("position"):
            return
        raise Violation("a position is shown twice or out of order")
    if any(earlier != attempt for earlier in at.shown[base:]):
        raise Violation("a token continues another history than the one that the client saw")
    shown = (*at.shown, attempt)
    set_request(world, request, shown=shown)
    if len(shown) == world.configuration.wanted[request].tokens:
        end(world, request, "done")
