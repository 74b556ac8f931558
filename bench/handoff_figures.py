"""The figures of `bench.handoff`: medians per prompt, the worse prompt of each figure, and missed targets.

Pure functions over plain values. Each mesh run is compared with the mean of the engine alone right before and right
after it, so that a machine that slowly gets faster or slower cancels out."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from bench.spread import Spread

HIDDEN_SHARE = 0.9
EXPOSED_MS = 10.0
PUSH_SLOWDOWN = 1.02
MORE_MS, MORE_SHARE = (
    15.0,
    0.01,
)  # allowance of the mesh until the first token, and a share of the time of the engine alone
THROTTLE_FACTOR = 1.5  # times the rate at which prefill produces keys and values
THROTTLED_MORE_MS = 10.0  # beyond the time that the last layer group's bytes take


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


@dataclass(frozen=True, slots=True)
class Unthrottled:
    """Figures of one length of prompt over shared memory."""

    prompt_tokens: int
    hidden_share: Spread
    exposed_ms: Spread
    single_ms: Spread
    mesh_minus_single_ms: Spread
    push_slowdown: Spread

    @property
    def allowance_ms(self) -> float:
        return MORE_MS + MORE_SHARE * self.single_ms.median


@dataclass(frozen=True, slots=True)
class Throttled:
    """Figures of one length of prompt over TCP throttled to little more than prefill produces."""

    prompt_tokens: int
    bytes_per_second: Spread
    exposed_ms: Spread
    bound_ms: Spread


def pair_up(mesh: Sequence[MeshRun], single_ms: Sequence[float]) -> list[PairedRun]:
    """Pair each mesh run with the single runs right before and after it."""
    if len(single_ms) != len(mesh) + 1:
        raise ValueError(f"{len(mesh)} mesh runs need {len(mesh) + 1} single runs around them, not {len(single_ms)}")
    return [PairedRun(run, mean(single_ms[i : i + 2])) for i, run in enumerate(mesh)]


def summarise(prompt_tokens: int, pairs: Sequence[PairedRun]) -> Unthrottled:
    return Unthrottled(
        prompt_tokens,
        Spread.of([pair.mesh.hidden_share for pair in pairs]),
        Spread.of([pair.mesh.exposed_ms for pair in pairs]),
        Spread.of([pair.single_ms for pair in pairs]),
        Spread.of([pair.mesh_minus_single_ms for pair in pairs]),
        Spread.of([pair.push_slowdown for pair in pairs]),
    )


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


def keys(runs: Sequence[Unthrottled], throttled: Sequence[Throttled]) -> dict[str, float | int]:
    """Each figure of its worse prompt; figures that belong together come from the same prompt."""
    slower = max(runs, key=lambda run: run.mesh_minus_single_ms.median - run.allowance_ms)
    later = max(throttled, key=lambda run: run.exposed_ms.median - run.bound_ms.median)
    return {
        "hidden_share": min(run.hidden_share.median for run in runs),
        "exposed_ms": max(run.exposed_ms.median for run in runs),
        "mesh_minus_single_ms": slower.mesh_minus_single_ms.median,
        "single_ms": slower.single_ms.median,
        "push_slowdown": max(run.push_slowdown.median for run in runs),
        "throttled_exposed_ms": later.exposed_ms.median,
        "throttled_bound_ms": later.bound_ms.median,
        "throttle_bytes_per_s": round(later.bytes_per_second.median),
    }


def misses(figures: dict[str, float | int]) -> list[str]:
    """One line for each missed target."""
    allowance_ms = MORE_MS + MORE_SHARE * figures["single_ms"]
    limits = [
        ("hidden_share", ">=", HIDDEN_SHARE),
        ("exposed_ms", "<=", EXPOSED_MS),
        ("mesh_minus_single_ms", "<=", allowance_ms),
        ("push_slowdown", "<=", PUSH_SLOWDOWN),
        ("throttled_exposed_ms", "<=", figures["throttled_bound_ms"]),
    ]
    return [
        f"{key} is {figures[key]:.4g}, wanted {sign} {limit:.4g}"
        for key, sign, limit in limits
        if not (figures[key] >= limit if sign == ">=" else figures[key] <= limit)
    ]
