"""Starts a mesh for each arrangement, one after the other, and puts the same load on each of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from cli.arrangements.turn import ClosedLoad, LoadTurn, TurnTimes, run_turn
from cli.local_mesh.own_mesh import own_mesh

DEFAULT = "default"  # what `baton up` starts here
ARRANGEMENTS: Mapping[str, Mapping[str, str]] = {
    DEFAULT: {},
    "one worker": {"mesh.prefill_workers": "0", "mesh.decode_workers": "1"},
    "adaptive 1+1": {"mesh.prefill_workers": "1", "mesh.decode_workers": "1"},
    "split 1+1": {"mesh.prefill_workers": "1", "mesh.decode_workers": "1", "gateway.local": "never"},
}
WORDS = {
    DEFAULT: "what baton up starts here",
    "one worker": "one decode worker that computes prompts, too",
    "adaptive 1+1": "1 prefill + 1 decode; a prompt goes where it costs less",
    "split 1+1": "1 prefill + 1 decode; decode computes no prompt",
}
# Every prompt is computed, no request is refused, no draft is accepted by chance: all arrangements get the same work.
COMMON = {"worker.prefix_cache": "false", "gateway.queue_seconds": "0", "decode.speculation": "off"}


SHORT = TurnTimes(warm_seconds=2.0, seconds=8.0, longest_seconds=25.0)


@dataclass(frozen=True, slots=True)
class MeasureOrder:
    settings: Mapping[str, str]  # settings from the command line
    clients: tuple[int, ...] = (1, 16)
    times: TurnTimes = SHORT
    seed: int = 1


Turns = dict[int, LoadTurn]  # by the number of clients


def settings_of(name: str, order: MeasureOrder) -> dict[str, str]:
    """All settings of a mesh with this arrangement."""
    return {**order.settings, **COMMON, **ARRANGEMENTS[name]}


async def measure_one(name: str, order: MeasureOrder, show: Callable[[str], None]) -> Turns:
    """Start this arrangement, warm it up and load it with each number of clients."""
    found, random = Turns(), Random(order.seed)
    show(f"{name}: starts")
    async with own_mesh(settings_of(name, order)) as gateway:
        for clients in order.clients:
            load = ClosedLoad(clients)
            show(f"{name}: {clients} client{'s' * (clients > 1)}")
            found[clients] = await run_turn(gateway.http_address, load, order.times, random)
    return found
