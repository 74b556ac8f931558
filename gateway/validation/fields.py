"""Range checks of request fields whose errors spell the fields as the client's front door does."""

from collections.abc import Mapping

from gateway.validation.ranges import MAX_SALT_CHARACTERS, Range
from mesh.errors import InvalidRequest


class Fields:
    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names  # the front door's spelling, where it differs

    def name(self, field: str) -> str:
        return self._names.get(field, field)

    def invalid(self, field: str, what: str) -> InvalidRequest:
        return InvalidRequest(self.name(field), f"{self.name(field)} {what}")

    def within(self, ranges: Mapping[str, Range], request: object) -> None:
        """Refuses a field of the request that is outside its range; a field that the client left out is in none."""
        for field, bounds in ranges.items():
            self.number(field, bounds, getattr(request, field))

    def number(self, field: str, bounds: Range, value: float | None) -> None:
        if value is not None and not bounds.holds(value):
            raise self.invalid(field, f"must be {bounds.words}, not {value}")

    def salt(self, salt: str) -> None:
        if len(salt) > MAX_SALT_CHARACTERS:
            raise self.invalid("salt", f"has {len(salt)} characters; at most {MAX_SALT_CHARACTERS} are allowed")

    def token_ids(self, field: str, ids: tuple[int, ...], vocabulary: int) -> None:
        if ids and not 0 <= min(ids) <= max(ids) < vocabulary:
            unknown = next(token for token in ids if not 0 <= token < vocabulary)
            raise self.invalid(field, f"holds token id {unknown}; the vocabulary has ids 0 to {vocabulary - 1}")
