"""The end of reasoning is forced: when, with which tokens, beside other rules, with drafts and after a fail-over."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine.step.logits import LogitAdjuster
from engine.step.plan import Piece
from engine.step.sampling import sample
from mesh.messages.jobs import Adjustments, ReasoningBudget, Sampling, TokenBias, TokenSequence

VOCAB = 40
PROMPT = (11, 12, 13)
OPEN, CLOSE = 30, 31  # marks of one token
FAVOURITE = 5  # the token that the model would take


def mark(*places: int | tuple[int, ...]) -> tuple[TokenSequence, ...]:
    return tuple(TokenSequence((place,) if isinstance(place, int) else place) for place in places)


BUDGET = ReasoningBudget(3, mark(OPEN), mark(CLOSE), spaces=(3, 4))
SPELLED = ReasoningBudget(2, mark((7, 27), 8, (9, 29)), mark((7, 27), 10, (9, 29)), barred=2, begun=True)
CHANNELS = ReasoningBudget(2, mark(20, 21, 22), mark(23), barred=1)


def logits(seed: int, **likely: float) -> Any:
    row = np.random.default_rng(seed).normal(0, 1, (1, VOCAB)).astype(np.float32)
    row[0, FAVOURITE] = 9
    for token, value in likely.items():
        row[0, int(token[1:])] = value
    return row


def piece(emitted: Sequence[int], sampling: Sampling, drafts: Sequence[int] = (), key: int = 1) -> Piece:
    text = [*PROMPT, *emitted]
    tokens = (text[-1], *drafts)
    return Piece(key, tokens, len(text) - 1, (0,), len(tokens), len(emitted), sampling, text=text)


def asked(budget: ReasoningBudget, **more: Any) -> Sampling:
    return Sampling(adjustments=Adjustments(reasoning=budget, **more))


def written(budget: ReasoningBudget, begin: Sequence[int], count: int, **likely: float) -> list[int]:
    """The tokens that come behind `begin`."""
    emitted = list(begin)
    for step in range(count):
        ((drawn,),) = sample([piece(emitted, asked(budget))], logits(step, **likely))
        emitted.append(drawn.token)
    return emitted[len(begin) :]


@pytest.mark.parametrize("tokens", [0, 1, 3])
def test_the_mark_comes_behind_so_many_tokens_and_the_answer_goes_on(tokens: int) -> None:
    begun = replace(BUDGET, tokens=tokens, begun=True)
    expected = [*[FAVOURITE] * tokens, CLOSE, FAVOURITE, FAVOURITE]
    assert written(begun, [], tokens + 3) == expected
    for before in ([], [4], [3, 4]):  # white space
        assert written(replace(begun, begun=False), [*before, OPEN], tokens + 3) == expected, before
    assert written(replace(begun, begun=False), [4], tokens + 3) == [FAVOURITE] * (tokens + 3)  # nothing was opened


def test_a_model_that_ends_its_reasoning_itself_is_left_alone() -> None:
    assert written(BUDGET, [OPEN, 1, CLOSE], 6) == [FAVOURITE] * 6


def test_a_mark_in_the_content_is_content() -> None:
    begun = replace(BUDGET, begun=True)
    for text in ([1, OPEN], [4, 1, OPEN], [OPEN, 1, CLOSE, OPEN], [OPEN, CLOSE, 4, OPEN]):
        assert written(BUDGET, text, 6) == [FAVOURITE] * 6, text
        assert written(replace(BUDGET, tokens=0), [*text, 1], 2, t30=20.0) == [OPEN] * 2, "no mark is barred there"
    assert written(begun, [1, CLOSE, 4, OPEN], 6) == [FAVOURITE] * 6


def test_each_mark_behind_a_message_in_a_channel_ends_the_reasoning() -> None:
    several = replace(CHANNELS, ends=(20, 24, 25))
    final = [19, 20, 18, 22]  # the header of another message
    for end in (23, 24, 25):
        assert written(several, [20, 21, 22, 1, end, *final], 4) == [FAVOURITE] * 4, end
    assert written(several, [20, 21, 22, 1, 20, 21, 22], 3) == [FAVOURITE, 23, FAVOURITE]  # two messages share it
    assert written(CHANNELS, [20, 21, 22, 1, 24, *final], 1) == [23]  # negative control


def test_a_mark_of_several_tokens_is_forced_in_order_and_one_that_has_begun_is_finished() -> None:
    assert written(SPELLED, [1, 2], 4) == [7, 10, 9, FAVOURITE]
    assert written(SPELLED, [1, 27], 3) == [10, 9, FAVOURITE]  # 27 is a text that ends as 7 does
    assert written(SPELLED, [1, 7, 10], 2) == [9, FAVOURITE]
    assert written(SPELLED, [27, 10, 29], 5) == [FAVOURITE] * 5  # ended by the model
    assert written(SPELLED, [7, 10], 2) == [9, FAVOURITE]


def test_a_model_with_channels_cannot_open_the_one_for_reasoning_once_it_is_spent() -> None:
    likely = {"t21": 20.0}
    assert written(CHANNELS, [20, 21, 22], 4) == [FAVOURITE, FAVOURITE, 23, FAVOURITE]
    assert written(CHANNELS, [20, 21, 22, 1, 2, 23, 20], 1, **likely) == [FAVOURITE]
    assert written(CHANNELS, [20, 21, 22, 1, 23, 20], 1, **likely) == [21]  # one token is left
    assert written(replace(CHANNELS, tokens=0), [20], 1, **likely) == [FAVOURITE]
    assert written(replace(CHANNELS, tokens=0), [19], 1, **likely) == [21]  # only the channel's name is barred


def test_drafts_see_the_rule_and_are_taken_back() -> None:
    sampling, adjuster = asked(replace(BUDGET, begun=True)), LogitAdjuster()
    rows = np.concatenate([logits(row) for row in range(4)])
    first, text = piece([1], sampling, (2, 3, CLOSE)), [*PROMPT, 1]
    first = replace(first, text=text)
    ((a, b, c, d),) = sample([first], rows, adjuster)
    assert [a.token, b.token, c.token, d.token] == [FAVOURITE, FAVOURITE, CLOSE, FAVOURITE]
    text += [6, 6]  # the drafts were refused
    again = replace(first, tokens=(6,), start=len(text) - 1, sampled=1, position=3)
    assert sample([again], rows[:1], adjuster)[0][0].token == CLOSE


def test_a_resumed_request_comes_to_the_same_state_and_a_neighbour_changes_nothing() -> None:
    sampling, emitted, adjuster = asked(replace(BUDGET, begun=True)), list[int](), LogitAdjuster()
    text, kept = [*PROMPT], list[int]()
    for step in range(8):
        row = logits(step)
        live = replace(piece(emitted, sampling), text=text)
        other = piece(emitted, Sampling(), key=2)
        ((mine,), (plain,)) = sample([live, other], np.concatenate([row, row]), adjuster)
        ((resumed,),) = sample([piece(emitted, sampling)], row)  # everything is replayed
        assert mine == resumed and plain.token == FAVOURITE
        emitted.append(mine.token)
        text.append(mine.token)
        kept.append(mine.token)
    assert kept == [FAVOURITE] * 3 + [CLOSE] + [FAVOURITE] * 4


def test_the_mark_comes_before_other_wishes_and_keeps_the_logprob_of_the_model() -> None:
    begun = replace(BUDGET, tokens=0, begun=True)
    row = logits(1)
    for more in (
        {"biases": (TokenBias(CLOSE, -100.0),)},
        {"bad_words": (TokenSequence((CLOSE,)),)},
        {"repetition_penalty": 1.3, "frequency_penalty": 2.0},
    ):
        ((drawn,),) = sample([piece([], asked(begun, **more))], row)
        assert drawn.token == CLOSE
    ((drawn,),) = sample([piece([], asked(begun))], row)
    total = np.log(np.exp(row[0].astype(np.float64)).sum())
    assert drawn.logprob == pytest.approx(row[0, CLOSE] - total, abs=1e-5)


def test_a_mark_that_is_banned_waits() -> None:
    begun = replace(BUDGET, tokens=0, begun=True)
    early = Sampling(adjustments=Adjustments(reasoning=begun), stop_ids=(CLOSE,), min_tokens=2)
    ((drawn,),) = sample([piece([1], early)], logits(1))
    assert drawn.token == FAVOURITE
    ((drawn,),) = sample([piece([1, 1], early)], logits(1))
    assert drawn.token == CLOSE
