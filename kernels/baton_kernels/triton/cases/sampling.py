"""Draws tokens, logprobs and the most likely tokens on a device; tests compare them with the CPU sampler."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from baton_kernels.triton import sampling
from baton_kernels.triton.likeliest import top_logprobs

Array = NDArray[Any]

SETTINGS: tuple[dict[str, float], ...] = (
    {"temperature": 0.0},
    {},
    {"temperature": 0.6, "top_k": 7},
    {"top_p": 0.8},
    {"min_p": 0.05},
    {"top_k": 40, "top_p": 0.9, "min_p": 0.01},
    {"temperature": 1.5, "top_k": 3, "top_p": 0.5},
)
_TYPES: dict[str, Any] = {
    "temperature": np.float32, "top_k": np.int32, "top_p": np.float32, "min_p": np.float32, "seed": np.uint64,
    "choice": np.int32, "position": np.int32,
}  # fmt: skip
_DEFAULTS = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 1, "choice": 0}


@dataclass(frozen=True, slots=True)
class DrawnOnDevice:
    tokens: Array
    logprobs: Array
    top_ids: Array
    top_logprobs: Array


def settings(rows: int, **given: Any) -> dict[str, Array]:
    """One array for each of the sampler's arguments; positions count up unless given."""
    values = {**_DEFAULTS, "position": np.arange(rows), **given}
    return {name: np.broadcast_to(np.asarray(values[name], kind), rows).copy() for name, kind in _TYPES.items()}


def draw(logits: Array, device: str, *, n_top: int = 0, allowed: Array | None = None, **given: Any) -> DrawnOnDevice:
    rows, vocab = logits.shape
    x = torch.from_numpy(logits).to(device)
    arrays = {name: a.view(np.int64) if name == "seed" else a for name, a in settings(rows, **given).items()}
    tokens = torch.full((rows,), -9, dtype=torch.int32, device=device)
    logprobs, totals = torch.full((2, rows), torch.nan, device=device)
    sampling.sample(
        x,
        *(torch.from_numpy(a).to(device) for a in arrays.values()),
        scratch=torch.full((sampling.scratch_floats(rows, vocab),), torch.nan, device=device),
        tokens=tokens,
        logprobs=logprobs,
        log_totals=totals,
        allowed=None if allowed is None else torch.from_numpy(allowed).to(device),
    )
    ids = torch.full((rows, n_top), -9, dtype=torch.int32, device=device)
    top = torch.full((rows, n_top), torch.nan, device=device)
    wanted = torch.full((rows,), n_top, dtype=torch.int32, device=device)
    top_logprobs(x, totals, wanted, ids=ids, logprobs=top)
    return DrawnOnDevice(*(part.cpu().numpy() for part in (tokens, logprobs, ids, top)))
