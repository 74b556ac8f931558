"""The inputs of each product of a layer, over all windows of a text.

The rows are kept, and not their moments: an expert reads few rows, and its moments would take more memory than they."""

import numpy as np

from engine.quantization.plain_layer import Floats


class LayerInputs:
    def __init__(self) -> None:
        self._rows: dict[str, list[Floats]] = {}
        self._latest: tuple[str, Floats] | None = None

    def heard(self, name: str, rows: Floats) -> None:
        self._rows.setdefault(name, []).append(rows)

    def moments(self, name: str, columns: int) -> Floats:
        """The sum of the products of each two inputs [k, k]; zeros for an expert that no row chose. Matrices with the
        same inputs follow each other, so the latest moments are kept."""
        if self._latest is None or self._latest[0] != name:
            total = np.zeros((columns, columns), np.float32)
            for rows in self._rows.pop(name, []):
                total += rows.T @ rows
            self._latest = name, total
        return self._latest[1]
