"""Decode's rules of the hand-off protocol, each with the mutant that replaces its guard by unguarded behaviour."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from decode_svc.emission import Emission
from decode_svc.handoff import landings
from decode_svc.handoff.quarantine import Quarantine
from decode_svc.handoff.sessions import Peer
from decode_svc.handoff.spans import Spans
from decode_svc.request import requests
from decode_svc.request.requests import DecodeRequest, PageOwner, same_ticket
from engine.pool.horizon import Horizon
from kvtransfer.transfer import Receiver
from mesh.messages.jobs import Ticket, Token
from mesh.messages.kv_messages import Commit, Quiet

Patch = Callable[[object, str, object], None]  # signature of setattr and monkeypatch.setattr: (target, name, value)
Mutant = Callable[[Patch], None]


def first(patch: Patch) -> None:
    def show_first(emission: Emission, request: DecodeRequest) -> Token | None:
        return None

    patch(Emission, "show_first", show_first)


def resend_count(patch: Patch) -> None:
    def committed_by(owner: PageOwner, commit: Commit) -> bool:
        return same_ticket(owner.ticket, commit.ticket)

    patch(PageOwner, "committed_by", committed_by)


def behind(patch: Patch) -> None:
    """Both tiers give each page back when its last slot is still read."""

    def first_page(horizon: Horizon, slot: int) -> int:
        return max(0, slot + 2 - horizon.window) // horizon.page_tokens if horizon.window else 0

    patch(Horizon, "first_page", first_page)


def kept(patch: Patch) -> None:
    """Both tiers give the pages of layers without windows back behind the windows of the others."""

    def behind(horizon: Horizon, first: int, stop: int) -> list[int]:
        return list(range(first * horizon.bands, stop * horizon.bands))

    patch(Horizon, "behind", behind)


def requiet(patch: Patch) -> None:
    def ask_again(quarantine: Quarantine, peer: Peer) -> None:
        pass

    patch(Quarantine, "ask_again", ask_again)


def incarnation(patch: Patch) -> None:
    """Decode sends Abort to any process at the writer's address, and its Quiet counts."""

    def quieted_by(owner: PageOwner, quiet: Quiet) -> bool:
        return same_ticket(owner.ticket, quiet.ticket)

    def owners_awaiting(quarantine: Quarantine, writer: int) -> list[PageOwner]:
        return quarantine.owners()

    patch(PageOwner, "quieted_by", quieted_by)
    patch(Quarantine, "owners_awaiting", owners_awaiting)


def ticket(patch: Patch) -> None:
    def ignoring_random_bits(one: Ticket, other: Ticket) -> bool:
        return replace(one, nonce=other.nonce) == other

    patch(requests, "same_ticket", ignoring_random_bits)


def early(patch: Patch) -> None:
    def is_early(request: DecodeRequest | None, ticket: Ticket) -> bool:
        return False

    patch(landings, "is_early", is_early)


def quarantine(patch: Patch) -> None:
    def needs_proof(quarantine: Quarantine, receiver: Receiver) -> bool:
        return False

    patch(Quarantine, "needs_proof", needs_proof)


def checksum(patch: Patch) -> None:
    def check(spans: Spans, stated: Sequence[tuple[int, int]], first: int, layers: int) -> list[bool]:
        return [True] * len(stated)

    patch(Spans, "check", check)


MUTANTS: dict[str, Mutant] = {
    "first": first,
    "behind": behind,
    "kept": kept,
    "resend_count": resend_count,
    "requiet": requiet,
    "incarnation": incarnation,
    "ticket": ticket,
    "early": early,
    "quarantine": quarantine,
    "checksum": checksum,
}
