"""Models that Baton makes itself: the trained pair that it ships, real shapes with random weights, tiny ones for
tests."""

from engine.builtin.model import SHAPES, ensure_random, make_model, make_shape, tiny
from engine.builtin.shipped import DRAFT, MODEL, PAIR

__all__ = ["DRAFT", "MODEL", "PAIR", "SHAPES", "ensure_random", "make_model", "make_shape", "tiny"]
