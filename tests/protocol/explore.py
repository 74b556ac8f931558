"""Explores every reachable state of a configuration breadth first, and walks at random through worlds too large for it.

Two things are checked: no step breaks a promise (`Violation`), and from every state a clean end is reachable by steps
that fair scheduling owes us, without a further fault."""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.protocol import decode, decode_steps, faults, gateway, landing, prefill
from tests.protocol.configurations import Configuration
from tests.protocol.decode_pages import stuck
from tests.protocol.world import GATEWAY, Message, Setting, State, Violation, World, empty

Label = tuple[Any, ...]
Successor = tuple[Label, bool, State]  # label, whether fair scheduling owes us this step, the next state

# Only the receiver changes, and nothing else depends on when these arrive: they are delivered first.
DELIVERED_FIRST = ("Later", "Landed")


@dataclass(frozen=True, slots=True)
class Exploration:
    states: int
    complete: bool
    violation: str = ""
    trace: tuple[Label, ...] = field(default=())


def initial(setting: Setting) -> State:
    world = empty(setting)
    for request in range(len(setting.configuration.wanted)):
        gateway.raise_attempt(world, request)
    return world.freeze()


def deliver(world: World, sender: int, receiver: int) -> None:
    message, *rest = world.stream(sender, receiver)
    world.set_stream(sender, receiver, tuple(rest))
    if receiver == GATEWAY:
        gateway.receive(world, sender, message)
    elif world.is_prefill(receiver):
        prefill.receive(world, receiver, sender, message)
    else:
        decode.receive(world, receiver, sender, message)


def stale_report(world: World, receiver: int, message: Message) -> bool:
    """A report of an old ticket, which the gateway drops."""
    if receiver != GATEWAY or len(message) < 2 or not world.guarded("attempt"):
        return False
    request, attempt, run = message[1]
    at = world.requests[request]
    return at.phase != "open" or (attempt, run) != (at.attempt, world.gateway_run)


def successors(setting: Setting, state: State) -> list[Successor]:
    world = World(setting, state)

    def after(label: Label, act: Callable[..., None], *arguments: Any, owed: bool = True) -> Successor:
        changed = World(setting, state)
        try:
            act(changed, *arguments)
        except Violation as violation:
            violation.label = label
            raise
        return label, owed, changed.freeze()

    ends = range(world.workers)
    arriving = [(x, y, world.stream(x, y)[0]) for x in ends for y in ends if world.stream(x, y) and world.up(y)]
    for sender, receiver, message in arriving:
        if message[0] in DELIVERED_FIRST or stale_report(world, receiver, message):
            return [after(("deliver", sender, receiver, message), deliver, sender, receiver)]
    found = [after(("deliver", x, y, message), deliver, x, y) for x, y, message in arriving]
    found += [after(label, act, *arguments) for label, act, arguments in worker_steps(world)]
    for worker in (*setting.prefills, *setting.decodes):
        if world.processes[worker][0] == "stopped":
            for peer in world.peers(worker):
                if world.up_or_stopped(peer) and not world.broken(worker, peer):
                    found.append(after(("lease ends", peer, worker), faults.break_stream, worker, peer))
            found.append(after(("thaw", worker), faults.thaw, worker, owed=False))
    if world.faults_left:
        for kind, label, act, arguments in faults.offered(world):
            if kind in setting.configuration.faults:
                found.append(after((label, *arguments), spend(act), *arguments, owed=False))
    return found


def spend(fault: Callable[..., None]) -> Callable[..., None]:
    def act(world: World, *arguments: Any) -> None:
        world.faults_left -= 1
        fault(world, *arguments)

    return act


def worker_steps(world: World) -> Iterator[tuple[Label, Callable[..., None], tuple[Any, ...]]]:
    """Steps of the workers, of the writes in flight and of the gateway's deadlines."""
    for worker in world.setting.prefills:
        if world.up(worker):
            for verb, ticket in prefill.steps(world, worker):
                yield (verb, worker, ticket), prefill.step, (worker, verb, ticket)
    for worker in world.setting.decodes:
        if world.up(worker):
            for verb, which in decode_steps.steps(world, worker):
                yield (verb, worker, which), decode_steps.step, (worker, verb, which)
    for write in world.writes:
        if not world.configuration.two_sided or world.up(write.decode):
            yield ("write lands", tuple(write)), landing.write_lands, (write,)
    for request, at in enumerate(world.requests):
        decodes = world.setting.decodes
        if at.phase == "waiting" and all(not world.up(d) or at.refused >> d & 1 for d in decodes):
            yield ("deadline", request), gateway.end, (request, "expired")
        if at.phase == "paused":
            yield ("client has read on", request), gateway.raise_attempt, (request,)


def clean(setting: Setting, state: State) -> bool:
    """Everything has ended, and every page is back or in quarantine for a writer that may still write."""
    world = World(setting, state)
    ends = {"done", "cancelled", "expired"} | ({"error"} if setting.configuration.may_fail else set())
    if any(at.phase not in ends for at in world.requests):
        return False
    if any(world.up(p) and world.prompts[p] for p in setting.prefills):
        return False
    for d in setting.decodes:
        pages = world.pages[d]
        if world.up(d) and (
            world.landings[d]
            or any(e.state != "free" and not (e.state == "quarantined" and stuck(world, e)) for e in pages)
        ):
            return False
    return True


def explore(
    configuration: Configuration,
    removed: frozenset[str] = frozenset(),
    *,
    seconds: float = 1e9,
    watch: Callable[[State, State], None] | None = None,
) -> Exploration:
    """`watch` receives every step as (state before, state after)."""
    setting, began = Setting(configuration, removed), time.monotonic()
    first = initial(setting)
    numbers, states = {first: 0}, [first]
    came_from: list[tuple[int, Label] | None] = [None]
    owed_from: list[list[int]] = [[]]  # for each state those from which an owed step leads here

    def trace(number: int) -> tuple[Label, ...]:
        path = []
        while (step := came_from[number]) is not None:
            number, label = step
            path.append(label)
        return tuple(reversed(path))

    number = 0
    while number < len(states):
        if number % 500 == 0 and time.monotonic() - began > seconds:
            return Exploration(len(states), False)
        try:
            for label, owed, after in successors(setting, states[number]):
                if watch:
                    watch(states[number], after)
                found = numbers.get(after)
                if found is None:
                    found = numbers[after] = len(states)
                    states.append(after)
                    came_from.append((number, label))
                    owed_from.append([])
                if owed:
                    owed_from[found].append(number)
        except Violation as violation:
            return Exploration(len(states), True, str(violation), (*trace(number), violation.label))
        number += 1
    stranded = first_without_clean_end(setting, states, owed_from)
    if stranded is not None:
        return Exploration(len(states), True, kind_of_end(states, owed_from, stranded), trace(stranded))
    return Exploration(len(states), True)


def reached(start: list[int], edges: Callable[[int], list[int]], total: int) -> bytearray:
    seen = bytearray(total)
    for number in start:
        seen[number] = 1
    todo = list(start)
    while todo:
        for other in edges(todo.pop()):
            if not seen[other]:
                seen[other] = 1
                todo.append(other)
    return seen


def first_without_clean_end(setting: Setting, states: list[State], owed_from: list[list[int]]) -> int | None:
    ends = [number for number, state in enumerate(states) if clean(setting, state)]
    stranded = reached(ends, owed_from.__getitem__, len(states)).find(0)
    return stranded if stranded >= 0 else None


def kind_of_end(states: list[State], owed_from: list[list[int]], number: int) -> str:
    """Does every request end from this state on, and only pages stay away?"""
    leads_to: dict[int, list[int]] = {}
    for target, sources in enumerate(owed_from):
        for source in sources:
            leads_to.setdefault(source, []).append(target)
    seen = reached([number], lambda n: leads_to.get(n, []), len(states))
    outcomes = [{at.phase for at in states[n][2]} for n in range(len(states)) if seen[n]]
    if any(phases <= {"done", "cancelled"} for phases in outcomes):
        return "a page or a prompt never comes back"
    return "refused though it could be served" if any("error" in p for p in outcomes) else "a request never ends"


def walk(configuration: Configuration, seed: int, removed: frozenset[str] = frozenset()) -> Exploration:
    """One random run: faults for a while, then fair scheduling without faults must lead to a clean end."""
    setting = Setting(configuration, removed)
    chance, state, path = random.Random(seed), initial(setting), list[Label]()
    calm = chance.randint(10, 120)
    try:
        for number in range(3000):
            found = successors(setting, state)
            owed = [s for s in found if s[1]]
            wrong = [s for s in found if not s[1] and number < calm]
            if not (owed or wrong) or (number >= calm and clean(setting, state)):
                break
            label, _, state = chance.choice(wrong if wrong and (not owed or chance.random() < 0.06) else owed)
            path.append(label)
    except Violation as violation:
        return Exploration(len(path), True, str(violation), (*path, violation.label))
    if clean(setting, state):
        return Exploration(len(path), True)
    return Exploration(len(path), True, "no clean end", tuple(path))
