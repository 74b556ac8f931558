"""The inputs of each product of a layer, over all windows of a text.

The rows are kept, and not their moments: an expert reads few rows, and its moments would take more memory than they."""

from engine.quantization.compensated import Compensation
from engine.quantization.plain_layer import Floats


class LayerInputs:
    def __init__(self) -> None:
        self._rows: dict[str, list[Floats]] = {}
        self._latest: tuple[str, Compensation] | None = None

    def heard(self, name: str, rows: Floats) -> None:
        self._rows.setdefault(name, []).append(rows)

    def compensation(self, name: str, columns: int) -> Compensation:
        """Matrices with the same inputs follow each other, so the latest one is kept."""
        if self._latest is None or self._latest[0] != name:
            self._latest = None  # its memory is free before the next one is made
            self._latest = name, Compensation.of(self._rows.pop(name, []), columns)
        return self._latest[1]
