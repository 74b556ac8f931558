"""Judges measured arrangements: names the best one, compares the default with it, and says whether a split pays."""

from collections.abc import Mapping
from dataclasses import dataclass

from cli.arrangements.measure import ARRANGEMENTS, DEFAULT, Turns

CLOSE = 0.05  # figures that differ by less are equal: one turn is not more exact


@dataclass(frozen=True, slots=True)
class Share:
    """The default beside the best of each figure; 1: it is the best one."""

    tokens: float  # its throughput over the highest
    ttft: float  # its median time to the first token over the shortest
    itl_p99: float  # its 99th percentile of gaps over that of the arrangement with the highest throughput


def best_of(found: Mapping[str, Turns], clients: int) -> str:
    """The arrangement with the highest throughput."""
    return max(found, key=lambda name: found[name][clients].tokens_per_second)


def share_of_default(found: Mapping[str, Turns], clients: int) -> Share:
    mine, best = found[DEFAULT][clients], found[best_of(found, clients)][clients]
    return Share(
        mine.tokens_per_second / best.tokens_per_second,
        mine.ttft_p50 / best.ttft_p50,
        mine.itl_p99_ms / max(best.itl_p99_ms, 1e-9),
    )


def sentences(found: Mapping[str, Turns], chosen: str) -> list[str]:
    """`chosen`: what the default is on this machine, and why."""
    said = [f"In use: {chosen}."]
    for clients in next(iter(found.values())):
        name, share = best_of(found, clients), share_of_default(found, clients)
        who = "1 client" if clients == 1 else f"{clients} clients"
        if name == DEFAULT or share.tokens >= 1 - CLOSE:
            said.append(f"{who}: no arrangement yields clearly more than the default.")
        else:
            flags = " ".join(f"--set {key}={value}" for key, value in ARRANGEMENTS[name].items())
            said.append(f"{who}: {name} yields {1 / share.tokens:.2f} times the tokens: baton up {flags}")
    return [*said, _split(found)]


def _split(found: Mapping[str, Turns]) -> str:
    clients = max(next(iter(found.values())))
    whole, split = found["one worker"][clients], found["split 1+1"][clients]
    more, shorter = split.tokens_per_second / whole.tokens_per_second, whole.itl_p99_ms / max(split.itl_p99_ms, 1e-9)
    figures = f"{more:.2f} times the tokens of one worker, and gaps {1 / max(shorter, 1e-9):.2f} times as long (p99)"
    if more >= 1 + CLOSE and shorter >= 1 - CLOSE:
        return f"A split pays here: {figures}."
    if more >= 1 - CLOSE and shorter >= 1 + CLOSE:
        return f"A split shortens gaps here: {figures}."
    return f"A split does not pay on this machine: {figures}. Tiers pay where each has cores or devices of its own."
