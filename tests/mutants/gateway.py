"""The gateway without one of its rules: each mutant replaces the guard of a rule by the unguarded behaviour."""

from collections.abc import Callable

from gateway.sequencing.attempts import OpenAttempts
from gateway.sequencing.requests import GatewayRequest
from mesh.messages.jobs import Ticket

Patch = Callable[[object, str, object], None]  # signature of monkeypatch.setattr: (target, name, value)
Mutant = Callable[[Patch], None]


def any_attempt(patch: Patch) -> None:
    """Tokens and reports of earlier attempts count like those of the current one."""

    def current(self: OpenAttempts, ticket: bytes) -> GatewayRequest | None:
        wanted = Ticket.unpack(ticket).request
        return next((each for each in self._requests.values() if each.id == wanted and not each.ended), None)

    patch(OpenAttempts, "current", current)


def any_position(patch: Patch) -> None:
    """Every token is shown, also a repeated one and one whose predecessor has not come."""

    def is_next(self: GatewayRequest, position: int) -> bool:
        return True

    patch(GatewayRequest, "is_next", is_next)


MUTANTS: dict[str, Mutant] = {"attempt": any_attempt, "position": any_position}
