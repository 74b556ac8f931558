"""The figures of `bench.handoff`: medians per prompt, the worse prompt of each figure, and missed targets.

Pure functions over plain values. Each mesh run is compared with the mean of the engine alone right before and right
after it, so that a machine that slowly gets faster or slower cancels out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from bench.command import missed
from bench.spread import Spread, medians

HIDDEN_SHARE = 0.9
EXPOSED_MS = 10.0
PUSH_SLOWDOWN = 1.02
MORE_MS, MORE_SHARE = 15.0, 0.01  # what the mesh may add until the first token, and as a share of the engine's time
THROTTLE_FACTOR = 1.5  # times the rate at which prefill produces keys and values
THROTTLED_MORE_MS = 10.0  # beyond the time that the last layer group's bytes take

Spreads = Mapping[str, Spread]  # the figures of one length of prompt


@dataclass(frozen=True, slots=True)
class MeshRun:
    """Measurements of one prompt that went through the mesh."""

    first_token_ms: float  # at the client, from the call to the first delta
    compute_ms: float  # from the beginning of the first step to the sampled first token
    exposed_ms: float  # from the first token at prefill to the admission at decode
    bytes: int
    bytes_before_first: int  # bytes that lay in decode's pages when the first token was sampled

    @property
    def hidden_share(self) -> float:
        return self.bytes_before_first / self.bytes


@dataclass(frozen=True, slots=True)
class PairedRun:
    mesh: MeshRun
    single_ms: float  # mean of the engine alone right before and after the mesh run

    @property
    def mesh_minus_single_ms(self) -> float:
        return self.mesh.first_token_ms - self.single_ms

    @property
    def push_slowdown(self) -> float:
        return self.mesh.compute_ms / self.single_ms


def allowance_ms(single_ms: float) -> float:
    return MORE_MS + MORE_SHARE * single_ms


def pair_up(mesh: Sequence[MeshRun], single_ms: Sequence[float]) -> list[PairedRun]:
    """Pair each mesh run with the single runs right before and after it."""
    if len(single_ms) != len(mesh) + 1:
        raise ValueError(f"{len(mesh)} mesh runs need {len(mesh) + 1} single runs around them, not {len(single_ms)}")
    return [PairedRun(run, mean(single_ms[i : i + 2])) for i, run in enumerate(mesh)]


def summarise(pairs: Sequence[PairedRun]) -> Spreads:
    """Over shared memory."""
    figures = {
        "hidden_share": [pair.mesh.hidden_share for pair in pairs],
        "exposed_ms": [pair.mesh.exposed_ms for pair in pairs],
        "single_ms": [pair.single_ms for pair in pairs],
        "mesh_minus_single_ms": [pair.mesh_minus_single_ms for pair in pairs],
        "push_slowdown": [pair.push_slowdown for pair in pairs],
    }
    return {name: Spread.of(values) for name, values in figures.items()}


def throttle_rate(prompt_tokens: int, token_bytes: int, single_ms: float) -> float:
    """Bytes per second: a little more than the engine alone has just produced with such a prompt."""
    return THROTTLE_FACTOR * prompt_tokens * token_bytes / (single_ms / 1000)


def throttled_bound_ms(last_group_bytes: int, bytes_per_second: float) -> float:
    return last_group_bytes / bytes_per_second * 1000 + THROTTLED_MORE_MS


def last_group_bytes(
    prompt_tokens: int, *, chunk_tokens: int, page_tokens: int, layers: int, layer_group: int, layer_bytes: int
) -> int:
    """Bytes of the last push: the last layers of the pages that the last chunk fills."""
    first = (prompt_tokens - 1) // chunk_tokens * chunk_tokens
    pages = -(-prompt_tokens // page_tokens) - first // page_tokens
    return pages * (layers - (layers - 1) // layer_group * layer_group) * layer_bytes


def keys(runs: Sequence[Spreads], throttled: Sequence[Spreads]) -> dict[str, float | int]:
    """Each figure of its worse prompt; figures that belong together come from the same prompt. `throttled`: over TCP at
    little more than prefill produces."""
    free, slow = [medians(run) for run in runs], [medians(run) for run in throttled]
    slower = max(free, key=lambda run: run["mesh_minus_single_ms"] - allowance_ms(run["single_ms"]))
    later = max(slow, key=lambda run: run["throttled_exposed_ms"] - run["throttled_bound_ms"])
    return {
        "hidden_share": min(run["hidden_share"] for run in free),
        "exposed_ms": max(run["exposed_ms"] for run in free),
        "mesh_minus_single_ms": slower["mesh_minus_single_ms"],
        "single_ms": slower["single_ms"],
        "push_slowdown": max(run["push_slowdown"] for run in free),
        **later,
        "throttle_bytes_per_s": round(later["throttle_bytes_per_s"]),
    }


def misses(figures: Mapping[str, float]) -> list[str]:
    """One line for each missed target."""
    most = {
        "exposed_ms": EXPOSED_MS,
        "mesh_minus_single_ms": allowance_ms(figures["single_ms"]),
        "push_slowdown": PUSH_SLOWDOWN,
        "throttled_exposed_ms": figures["throttled_bound_ms"],
    }
    return missed(figures, least={"hidden_share": HIDDEN_SHARE}, most=most)
