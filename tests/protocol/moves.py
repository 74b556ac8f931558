"""The moves between phases that one step of the model makes, in the words of the code's own tables of moves."""

from collections.abc import Iterator

from tests.protocol.world import State

Move = tuple[str, str, str]  # tier, phase before, phase after

# Phases of a request at the gateway, as `gateway/sequencing/requests.py` calls them. A deadline that passes is an error
# there.
GATEWAY_PHASES = {
    "waiting": "waiting",
    "open": "open",
    "paused": "paused",
    "done": "done",
    "cancelled": "cancelled",
    "error": "error",
    "expired": "error",
}
PREFILL_PHASES = ("queued", "asked", "pushing", "held", "stopping")  # an ended prompt is not kept
DECODE_PHASES = ("open", "landing", "local", "running", "lost")


def moves(before: State, after: State) -> Iterator[Move]:
    """Moves of requests, prompts and landings. A process that died or was replaced, and a gateway that restarted, made
    no moves: they forgot."""
    if before[0] == after[0]:
        for old, new in zip(before[2], after[2], strict=True):
            if old.phase != new.phase or old.attempt != new.attempt:
                yield "gateway", GATEWAY_PHASES[old.phase], GATEWAY_PHASES[new.phase]
    for worker, process in enumerate(before[6]):
        if process[1] == after[6][worker][1] and after[6][worker][0] != "dead":
            yield from prompt_moves(dict(before[3][worker]), dict(after[3][worker]))
            yield from landing_moves(dict(before[4][worker]), dict(after[4][worker]))


def prompt_moves(before: dict, after: dict) -> Iterator[Move]:  # type: ignore[type-arg]
    for ticket, old in before.items():
        new = after[ticket].phase if ticket in after else "ended"
        if old.phase != new:
            yield "prefill", old.phase, new


def landing_moves(before: dict, after: dict) -> Iterator[Move]:  # type: ignore[type-arg]
    """A higher attempt ends a request that does not run, and begins a new one with its age."""
    for request, old in before.items():
        new = after.get(request)
        if new is None or (new.ticket != old.ticket and old.phase != "running"):
            yield "decode", old.phase, "ended"
        elif old.phase != new.phase:
            yield "decode", old.phase, new.phase
