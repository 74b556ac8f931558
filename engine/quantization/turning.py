"""Turns a model's numbers without changing what it computes, so that no activation has outliers.

Outliers take the resolution of all that share their scale. Turned by an orthogonal matrix, an activation has its size
in all elements alike (Ashkboos et al., QuaRot, arXiv 2404.00456). Two places can be turned within the weights alone:

- The residual stream. RMSNorm commutes with the turn once its weights are part of the products behind it. So the norms'
  weights become 1, and a head that was the embedding becomes a matrix of its own.
- The values of each attention head: `v` turns them and `o` turns them back.

What stays as it is: queries and keys, whose positions are rotations of their own, and the inner activations of the
feed-forward, between which a function lies that is not linear.

Each number is a fixed sequence of additions and multiplications in double precision, so that every machine gets the
same bits."""

from dataclasses import dataclass

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

Doubles = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ModelTurn:
    """The turn of a model with this length of the residual stream and of a head."""

    hidden: int
    head_dim: int

    def reads(self, weights: Doubles, norm: Doubles) -> Doubles:
        """A matrix [n, hidden] whose inputs come out of a norm with these weights."""
        return turned(weights * norm)

    def writes(self, weights: Doubles) -> Doubles:
        """A matrix [hidden, k], or its bias [hidden], whose outputs are added to the residual stream."""
        return _swapped(turned(_swapped(weights)))

    def embeds(self, rows: Doubles) -> Doubles:
        return turned(rows)

    def makes_values(self, weights: Doubles) -> Doubles:
        """The value projection [heads * head_dim, k], or its bias [heads * head_dim]."""
        swapped = _swapped(weights)
        heads = swapped.reshape(*swapped.shape[:-1], -1, self.head_dim)
        return _swapped(turned(heads).reshape(swapped.shape))

    def reads_values(self, weights: Doubles) -> Doubles:
        """The output projection [n, heads * head_dim]."""
        return turned(weights.reshape(len(weights), -1, self.head_dim)).reshape(weights.shape)


def turned(vectors: Doubles) -> Doubles:
    """Each vector [..., size] times one orthogonal matrix: random signs, sums and differences of elements by halves as
    often as the size allows (a Hadamard matrix), and a reflection for the odd factor that is left."""
    size = vectors.shape[-1]
    odd = size
    while odd % 2 == 0:
        odd //= 2
    length, span = size // odd, 1
    parts: Doubles = (vectors * _signs(size)).reshape(-1, odd, length)
    while span < length:
        pairs = parts.reshape(len(parts), odd, -1, 2, span)
        low, high = pairs[..., 0, :], pairs[..., 1, :]
        parts = np.stack([low + high, low - high], axis=-2).reshape(parts.shape)
        span *= 2
    parts = parts / float(length) ** 0.5
    if odd > 1:
        total = parts[:, 0].copy()
        for each in range(1, odd):
            total += parts[:, each]
        parts = parts - total[:, None] * (2.0 / odd)
    return parts.reshape(vectors.shape)


def _signs(size: int) -> Doubles:
    drawn = np.frombuffer(blake3(b"turn").digest(-(-size // 8)), np.uint8)
    return np.unpackbits(drawn)[:size].astype(np.float64) * 2.0 - 1.0


def _swapped(weights: Doubles) -> Doubles:
    return np.ascontiguousarray(weights.T)
