"""Range checks of request fields whose errors spell the fields as the client's front door does."""

import math
from collections.abc import Mapping

from mesh.errors import InvalidRequest


class Fields:
    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names  # the front door's spelling, where it differs

    def name(self, field: str) -> str:
        return self._names.get(field, field)

    def invalid(self, field: str, what: str) -> InvalidRequest:
        return InvalidRequest(self.name(field), f"{self.name(field)} {what}")

    def integer(self, field: str, value: int, low: int, high: int | None = None) -> int:
        if value < low or (high is not None and value > high):
            limits = f"at least {low}" if high is None else f"from {low} to {high}"
            raise self.invalid(field, f"must be {limits}, not {value}")
        return value

    def number(
        self, field: str, value: float | None, default: float, *, low: float, high: float, above: bool = False
    ) -> float:
        """`above`: the value must be larger than `low`."""
        if value is None:
            return default
        if not (math.isfinite(value) and low <= value <= high) or (above and value == low):
            limits = f"above {low:g} and at most {high:g}" if above else f"from {low:g} to {high:g}"
            raise self.invalid(field, f"must be {limits}, not {value}")
        return value

    def token_ids(self, field: str, ids: tuple[int, ...], vocabulary: int) -> None:
        if ids and not 0 <= min(ids) <= max(ids) < vocabulary:
            unknown = next(token for token in ids if not 0 <= token < vocabulary)
            raise self.invalid(field, f"holds token id {unknown}; the vocabulary has ids 0 to {vocabulary - 1}")
