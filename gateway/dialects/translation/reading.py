"""Reads an object inside a body: a wrong type is refused by its path, and a member without effect is named.

The bodies of gateway/dialects/openai/types.py have flat fields, which msgspec checks. Other chat APIs nest theirs, and
their clients add members from month to month. A member that no translation reads changes nothing here, and a header of
the answer names it."""

import re
from collections.abc import Sequence
from typing import Any

from mesh.errors import InvalidRequest, brief

Json = dict[str, Any]
Ignored = dict[str, None]  # names of members without effect, in the order in which they were found

MOST_IGNORED = 1000  # names that are remembered
_INDEX = re.compile(r"\[\d+\]")


def ignore(name: str, ignored: Ignored) -> None:
    """Remember a member without effect; `name` is its path, whose numbers are left out."""
    if len(ignored) < MOST_IGNORED:
        ignored[_INDEX.sub("", name)] = None


class ObjectReader:
    """One object. Null is as good as no member."""

    def __init__(self, value: Any, path: str, ignored: Ignored) -> None:
        if not isinstance(value, dict):
            raise InvalidRequest(path, f"{path} must be an object; it is {type(value).__name__}")
        self.path = path
        self._value = value
        self._ignored = ignored
        self._read = set[str]()

    def at(self, name: str) -> str:
        return f"{self.path}.{brief(name)}"

    def any(self, name: str) -> Any:
        self._read.add(name)
        return self._value.get(name)

    def text(self, name: str) -> str:
        value = self.optional_text(name)
        if value is None:
            raise InvalidRequest(self.at(name), f"{self.at(name)} is missing: it must be text")
        return value

    def optional_text(self, name: str) -> str | None:
        value = self.any(name)
        if not isinstance(value, str | None):
            raise InvalidRequest(self.at(name), f"{self.at(name)} must be text")
        return value

    def flag(self, name: str) -> bool | None:
        value = self.any(name)
        if not isinstance(value, bool | None):
            raise InvalidRequest(self.at(name), f"{self.at(name)} must be true or false")
        return value

    def count(self, name: str) -> int | None:
        value = self.any(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise InvalidRequest(self.at(name), f"{self.at(name)} must be a whole number, at least 0")
        return value

    def items(self, name: str) -> list[Any]:
        value = self.any(name)
        if not isinstance(value, list | None):
            raise InvalidRequest(self.at(name), f"{self.at(name)} must be a list")
        return value or []

    def choice(self, name: str, allowed: Sequence[str], why: str = "") -> str | None:
        """A text of the list; `why` says more about the other ones."""
        value = self.any(name)
        if value is not None and value not in allowed:
            what = f"{self.at(name)} is {brief(repr(value))}; it must be {' or '.join(allowed)}"
            raise InvalidRequest(self.at(name), what + (f": {why}" if why else ""))
        return None if value is None else str(value)

    def refuse(self, name: str, neutral: Sequence[Any], why: str) -> None:
        """A member that is not supported, with the values that change nothing."""
        value = self.any(name)
        if value is not None and value not in neutral:
            raise InvalidRequest(self.at(name), f"{self.at(name)} is not supported: {why}")

    def without_effect(self, name: str) -> None:
        if self.any(name) is not None:
            ignore(self.at(name), self._ignored)

    def done(self) -> None:
        """Every other member has no effect."""
        for name, value in self._value.items():
            if name not in self._read and value is not None:
                ignore(self.at(name), self._ignored)
