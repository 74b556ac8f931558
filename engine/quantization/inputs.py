"""The inputs of each product of a layer, over all windows of a text.

Rows are kept until their moments take less memory than they: an expert reads few of them, other matrices one for each
token."""

from collections.abc import Collection

import numpy as np

from engine.quantization.compensated import Compensation
from engine.quantization.plain_layer import Floats


class LayerInputs:
    def __init__(self, wanted: Collection[str]) -> None:
        """`wanted`: names of the inputs whose errors are made up for."""
        self._wanted = wanted
        self._rows: dict[str, list[Floats]] = {}
        self._moments: dict[str, Floats] = {}
        self._latest: tuple[str, Compensation] | None = None

    def heard(self, name: str, rows: Floats) -> None:
        if name not in self._wanted:
            return
        kept = self._rows.setdefault(name, [])
        kept.append(rows)
        width = rows.shape[1]
        if name in self._moments or sum(len(some) for some in kept) > width:
            moments = self._moments.setdefault(name, np.zeros((width, width), np.float32))
            while kept:
                some = kept.pop(0)
                moments += some.T @ some

    def compensation(self, name: str, columns: int) -> Compensation:
        """Matrices with the same inputs follow each other, so the latest one is kept."""
        if self._latest is None or self._latest[0] != name:
            self._latest = None  # its memory is free before the next one is made
            self._latest = name, Compensation.of(self._rows.pop(name, []), columns, self._moments.pop(name, None))
        return self._latest[1]
