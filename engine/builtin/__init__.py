"""Models that are made, not downloaded: the one Baton ships, real shapes with random weights, tiny ones for tests."""

from engine.builtin.model import SHAPES, ensure_builtin, make_model, make_shape, tiny

__all__ = ["SHAPES", "ensure_builtin", "make_model", "make_shape", "tiny"]
