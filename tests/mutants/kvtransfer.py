"""The transports without one of their rules: each mutant replaces the guards of a rule by the unguarded behaviour."""

from collections.abc import Callable

from kvtransfer import memory, tcp

Patch = Callable[[object, str, object], None]  # signature of monkeypatch.setattr: (target, name, value)
Mutant = Callable[[Patch], None]


def without_sink(patch: Patch) -> None:
    """The rest of a half-received frame lands in its page, whatever became of the landing."""
    patch(tcp, "drain", lambda connections, ticket: None)
    patch(memory, "still_wanted", lambda index, pages: True)


MUTANTS: dict[str, Mutant] = {"sink": without_sink}
