"""A piece that follows gets the token that its request sampled in the step before."""

import pytest

from engine.step.following import FollowedTokens
from engine.step.plan import Piece, Plan, Sampled
from mesh.messages.jobs import Sampling

SAMPLING = Sampling()


def piece(key: int, tokens: tuple[int, ...] = (0,), *, sampled: int = 1, follows: bool = False) -> Piece:
    return Piece(key, tokens, 3, (0,), sampled, 0, SAMPLING, follows=follows)


def tokens(*values: int) -> tuple[Sampled, ...]:
    return tuple(Sampled(value, 0.0) for value in values)


def test_only_the_pieces_that_follow_are_filled_in() -> None:
    followed = FollowedTokens()
    followed.remember([piece(1), piece(2)], [tokens(41), tokens(42)])
    plan = Plan(1, (piece(2, follows=True), piece(3, (7,)), piece(1, follows=True)))
    assert followed.fill_in(plan) == Plan(1, (piece(2, (42,)), piece(3, (7,)), piece(1, (41,))))


def test_a_plan_in_which_nothing_follows_stays_the_same_object() -> None:
    plan = Plan(0, (piece(1, (5,)),))
    assert FollowedTokens().fill_in(plan) is plan


def test_a_request_that_sampled_two_tokens_or_not_in_the_last_step_cannot_be_followed() -> None:
    followed = FollowedTokens()
    followed.remember([piece(1)], [tokens(41)])
    followed.remember([piece(2, (8, 9), sampled=2)], [tokens(1, 2)])
    for key in (1, 2):
        with pytest.raises(ValueError, match=f"piece {key} follows a token"):
            followed.fill_in(Plan(2, (piece(key, follows=True),)))
