"""Draws the story of a seed. Each seed has its own mesh and its own rate for each kind of fault, often none: a run with
many faults of few kinds goes deeper than one with few faults of all kinds."""

from collections.abc import Iterable
from dataclasses import replace
from math import exp, inf, log
from random import Random

from decode_svc.speculation.speculation import DraftSource
from gateway.routing.router import Local
from mesh.messages.jobs import Sampling
from tests.sim.model import VOCABULARY
from tests.sim.seeds.story import AT_DECODE, AT_GATEWAY, AT_PREFILL, PHASES, Demand, SimFault, SimWorld, Story
from tests.sim.workers import PAGE_TOKENS

LOAD_SECONDS = (55.0, 120.0)
LONGEST_PROMPT = 60
OF_PROCESS = ("kill", "freeze", "replace", "drain", "slow", "hang", "copy", "stand still")
OF_GATEWAY = ("kill gateway", "freeze gateway", "drain gateway", "stand still gateway")
STILL = ("stand still", "stand still gateway")  # where a supervisor ends such processes
LATER_KINDS = ("copy", "odd job", *STILL)  # drawn apart, so that stories keep their other faults
OF_WAYS = ("snap", "cut", "deafen")


def draw(seed: int, *, faults: bool = True, requests: int | None = None) -> Story:
    random = Random(seed * 7919 + 13)
    world = _world(random, seed)
    prefill_tokens, decode_tokens = _page_tokens(Random(seed * 7919 + 15))
    world = replace(world, itl_target_ms=_target_ms(Random(seed * 7919 + 14), world))
    world = replace(world, prefill_tokens=prefill_tokens, decode_tokens=decode_tokens)
    world = replace(
        world, window=_window(Random(seed * 7919 + 20)), full_layers=Random(seed * 7919 + 21).choice((0, 1))
    )
    host = Random(seed * 7919 + 19)
    world = replace(world, supervised=host.random() < 0.5, one_port=world.gateways > 1 and host.random() < 0.4)
    load_seconds = random.uniform(*LOAD_SECONDS)
    demands = _demands(random, world, load_seconds, requests or random.randint(20, 45))
    demands = _of_tenants(Random(seed * 7919 + 16), demands)
    kinds = [kind for kind in PHASES if kind not in (*LATER_KINDS, "deadline")]
    found = _faults(random, world, load_seconds, kinds)
    later = [kind for kind in LATER_KINDS if world.supervised or kind not in STILL]
    found += _faults(Random(seed * 7919 + 17), world, load_seconds, later)
    found += [each for each in (_lasting(random, world, load_seconds), _hang(seed, world, load_seconds)) if each]
    found.sort(key=lambda fault: fault.at)
    return Story(world, demands, tuple(found) if faults else (), load_seconds)


def _window(random: Random) -> int:
    """A fourth of the models have windows."""
    return random.choice((0, 0, 0, random.choice((2, 5, 12, 30))))


def _between(random: Random, least: float, most: float) -> float:
    """Each order of magnitude is as likely as the others."""
    return exp(random.uniform(log(least), log(most)))


def _world(random: Random, seed: int) -> SimWorld:
    kinds = (DraftSource.OFF, DraftSource.DRAFT, DraftSource.LOOKUP)
    return SimWorld(
        seed=seed,
        prefills=random.randint(1, 3),
        decodes=random.randint(1, 3),
        gateways=random.choice((1, 2, 2, 2)),
        classes=("class-a", "class-b") if random.random() < 0.2 else ("class-a",),
        pages=random.choice((24, 32, 48, 96)),
        prefill_pages=random.choice((20, 32, 48, 96)),
        one_sided=random.random() < 0.6,
        may_kill=random.random() < 0.7,
        cache=random.random() < 0.7,
        local=random.choice((Local.AUTO, Local.AUTO, Local.NEVER, Local.NEVER, Local.ALWAYS)),
        chunk_tokens=random.choice((4, 8, 16)),
        max_batch=random.choice((3, 8, 64)),
        source=random.choices(kinds, (6, 1, 1))[0],
        ahead=random.random() < 0.2,
        step_seconds=_between(random, 0.01, 0.2),
        latency_seconds=_between(random, 0.002, 0.1),
        write_seconds=_between(random, 0.002, 0.3),
        drift=random.choice((0.0, 0.0001, 0.02)),
        reader_kib=random.choice((4, 4, 256)),
    )


def _target_ms(random: Random, world: SimWorld) -> float:
    """Half of the worlds have no target; that of the others is between half a step's time and four times it."""
    return 0.0 if random.random() < 0.5 else 1000 * world.step_seconds * _between(random, 0.5, 4.0)


def _page_tokens(random: Random) -> tuple[int, int]:
    """Tokens of a page at prefill and at decode: in a third of the worlds the tiers differ."""
    if random.random() < 2 / 3:
        return PAGE_TOKENS, PAGE_TOKENS
    return random.choice(((2, 4), (4, 2), (4, 8), (8, 4), (8, 2), (2, 8), (6, 4), (4, 6)))


def _demands(random: Random, world: SimWorld, load_seconds: float, count: int) -> tuple[Demand, ...]:
    """Requests come alone and in bursts; many prompts begin alike."""
    stems = [_tokens(random, random.randint(1, 40)) for _ in range(6)]
    bursts = [random.uniform(0, load_seconds) for _ in range(random.randint(1, 4))]
    patient, bounded = random.random() < 0.5, random.choice((0.0, 0.1, 0.4))
    times = [
        random.choice(bursts) + random.uniform(0, 2) if random.random() < 0.4 else random.uniform(0, load_seconds)
        for _ in range(count)
    ]
    demands = []
    for at in sorted(times):
        prompt = (random.choice(stems) + _tokens(random, random.randint(0, 20)))[:LONGEST_PROMPT]
        most = random.randint(20, 60) if random.random() < 0.3 else random.randint(1, 20)
        sampling = Sampling(
            temperature=random.choice((0.0, 1.0)),
            seed=random.getrandbits(32),
            max_tokens=most,
            stop_ids=(random.randrange(VOCABULARY),) if random.random() < 0.3 else (),
        )
        demands.append(
            Demand(
                at,
                prompt,
                sampling,
                random.randrange(world.gateways),
                None if patient or random.random() >= bounded else _between(random, 0.05, 20.0),
                len(world.classes) > 1 and random.random() < 0.5,
                random.choice((0, 0, 0, -5, 5)),
            )
        )
    return tuple(demands)


def _of_tenants(random: Random, demands: tuple[Demand, ...]) -> tuple[Demand, ...]:
    """In a quarter of the worlds there are two tenants; in the others all requests may share their pages."""
    if random.random() < 3 / 4:
        return demands
    return tuple(replace(each, salt=random.choice((b"alice", b"bob"))) for each in demands)


def _tokens(random: Random, count: int) -> tuple[int, ...]:
    return tuple(random.randrange(50) for _ in range(count))


def _faults(random: Random, world: SimWorld, load_seconds: float, kinds: Iterable[str]) -> list[SimFault]:
    found = list[SimFault]()
    for kind in kinds:
        if random.random() < 0.6:
            continue
        mean = load_seconds / _between(random, 1.0, 15.0)
        at = random.expovariate(1 / mean)
        while at < load_seconds:
            found.append(_fault(random, world, kind, at))
            at += random.expovariate(1 / mean)
    return found


def _names(world: SimWorld) -> tuple[list[str], list[str], list[str]]:
    counts = (("prefill", world.prefills), ("decode", world.decodes), ("gateway", world.gateways))
    prefills, decodes, gateways = ([f"{tier}{n}" for n in range(count)] for tier, count in counts)
    return prefills, decodes, gateways


def _fault(random: Random, world: SimWorld, kind: str, at: float) -> SimFault:
    prefills, decodes, gateways = _names(world)
    seconds = _between(random, 0.05, 25.0)
    waits = random.random() < 0.6
    if kind == "odd job":
        return SimFault(at, kind, pick=1)
    if kind in OF_PROCESS:
        target = random.choice(prefills + decodes)
        return SimFault(at, kind, target, seconds=seconds, phase=_phase(random, world, target) if waits else "")
    if kind in OF_GATEWAY:
        return SimFault(
            at,
            kind,
            random.choice(gateways),
            seconds=seconds,
            phase=random.choice(AT_GATEWAY) if waits else "",
        )
    if kind in OF_WAYS:
        ways = [(p, d) for p in prefills for d in decodes] + [(w, g) for w in prefills + decodes for g in gateways]
        one, other = random.choice(ways)
        if random.random() < 0.5 and other not in gateways:
            one, other = other, one
        phase = _phase(random, world, one) if waits and one not in gateways else ""
        if kind == "deafen" and random.random() < 0.5:
            one, other, phase = other, one, ""
        return SimFault(at, kind, one, other, seconds=seconds, phase=phase)
    if kind in ("cancel", "stall"):
        phase = random.choice(PHASES[kind]) if waits else ""
        lasts = seconds if kind == "cancel" else _between(random, 1.0, 25.0)
        return SimFault(at, kind, seconds=lasts, phase=phase, pick=random.getrandbits(16))
    return SimFault(at, kind, seconds=_between(random, 0.5, 25.0), pick=random.choice((1, 1, 2, 5, 40)))


def _phase(random: Random, world: SimWorld, target: str) -> str:
    """Phases in which pages are at stake come more often."""
    if target.startswith("prefill"):
        return random.choices(AT_PREFILL, (1, 1, 4, 2))[0]
    return random.choices(AT_DECODE, (0, 0, 3, 2) if world.local is Local.ALWAYS else (1, 4, 1, 3))[0]


def _lasting(random: Random, world: SimWorld, load_seconds: float) -> SimFault | None:
    """A fault that never ends by itself. The mesh must work around it, so the first worker of each tier is spared."""
    at = random.uniform(0, load_seconds)
    prefills, decodes, _ = _names(world)
    if len(world.classes) > 1 or random.random() < 0.6:
        return None
    others = prefills[1:] + decodes[1:]
    if others and random.random() < 0.6:
        target = random.choice(others)
        return SimFault(at, "freeze", target, seconds=inf, phase=_phase(random, world, target))
    ways = [(p, d) for p in prefills for d in decodes if (p, d) != (prefills[0], decodes[0])]
    if not ways:
        return None
    one, other = random.choice(ways)
    return SimFault(at, random.choice(("cut", "deafen")), one, other, seconds=inf)


def _hang(seed: int, world: SimWorld, load_seconds: float) -> SimFault | None:
    """A step that never ends. Without a supervisor the first worker of each tier is spared, as above."""
    random, (prefills, decodes, _) = Random(seed * 7919 + 18), _names(world)
    others = prefills + decodes if world.supervised else prefills[1:] + decodes[1:]
    if not others or len(world.classes) > 1 or random.random() < 0.7:
        return None
    target, at = random.choice(others), random.uniform(0, load_seconds)
    return SimFault(at, "hang", target, seconds=inf, phase=_phase(random, world, target))
