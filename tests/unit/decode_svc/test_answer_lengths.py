"""Decode forecasts how long running answers become, and how long they stay, from the answers that have ended."""

from random import Random

from decode_svc.request.answer_lengths import KEPT, KNOWN, AnswerLengths


def lengths_of(*ended: tuple[int, bool]) -> AnswerLengths:
    lengths = AnswerLengths()
    for tokens, cut in ended:
        lengths.add(tokens, tokens, cut=cut)
    return lengths


def test_before_some_answers_have_ended_nothing_is_known_and_the_limit_is_expected() -> None:
    lengths = lengths_of(*[(5, False)] * (KNOWN - 1))
    assert not lengths.known and lengths.seconds == 0.0
    lengths.add(5, 6.0, cut=False)
    assert lengths.known and 5 < lengths.seconds < 6
    assert AnswerLengths().left(3, 40) == 37


def test_answers_that_ended_by_themselves_tell_what_is_left_of_others() -> None:
    lengths = lengths_of(*[(10, False), (30, False)] * 8)
    assert lengths.left(0, 1000) == 20
    assert lengths.left(15, 1000) == 15, "it outlived the short ones"
    assert lengths.left(0, 10) == 10 and lengths.left(15, 20) == 5, "never beyond its limit"


def test_answers_cut_at_their_limit_say_only_that_they_are_that_long() -> None:
    lengths = lengths_of(*[(16, True)] * 40, *[(100, False)] * 10)
    assert lengths.left(0, 500) == 100
    assert lengths_of(*[(16, True)] * 40).left(0, 500) == 500, "as long as it may become"


def test_an_answer_longer_than_all_others_is_expected_to_go_on_for_as_long_again() -> None:
    lengths = lengths_of(*[(10, False)] * 20)
    assert lengths.left(50, 1000) == 50 and lengths.left(50, 60) == 10


def test_old_answers_are_forgotten() -> None:
    lengths = lengths_of(*[(10, False)] * KEPT, *[(20, False)] * KEPT)
    assert lengths.left(0, 1000) == 20 and lengths.seconds == 20


def test_the_expectation_is_the_mean_of_what_would_have_come() -> None:
    random, lengths = Random(3), AnswerLengths()
    true = [random.randint(1, 100) for _ in range(KEPT)]
    for length in true:
        limit = random.randint(1, 200)  # cuts many of them
        lengths.add(min(length, limit), 1, cut=length > limit)
    assert abs(lengths.left(0, 1000) - sum(true) / len(true)) < 8
