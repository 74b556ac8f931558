"""Scratch memory of the passes over a model: arrays that are kept from step to step and only grow."""

import numpy as np

from engine.model.weights import Floats


class Scratch:
    def __init__(self) -> None:
        self._arrays: dict[str, Floats] = {}

    def take(self, name: str, rows: int, *width: int) -> Floats:
        """The array of this name, [rows, *width]. It holds whatever was written to it last."""
        have = self._arrays.get(name)
        if have is None or len(have) < rows:
            grown = max(rows, 0 if have is None else 2 * len(have))
            have = self._arrays[name] = np.empty((grown, *width), np.float32)
        return have[:rows]
