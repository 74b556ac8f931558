"""The tokens that followed the same tokens earlier are proposed; without such a place there are no drafts."""

from random import Random

from decode_svc.speculation.lookup import TOKENS_PER_CALL, Lookup


def test_what_followed_the_last_tokens_is_proposed() -> None:
    assert Lookup().drafts([1, 2, 3, 4, 5, 9, 1, 2, 3], 2) == (4, 5)


def test_the_longest_and_latest_agreement_wins() -> None:
    text = [1, 2, 3, 7, 9, 2, 3, 8, 1, 2, 3]
    assert Lookup().drafts(text, 1) == (7,), "three tokens agree there, only two later on"
    assert Lookup().drafts([1, 2, 3, 7, 1, 2, 3, 8, 1, 2, 3], 1) == (8,)


def test_a_repetition_that_reaches_the_end_goes_round() -> None:
    assert Lookup().drafts([5, 6, 7, 5, 6, 7, 5, 6], 7) == (7, 5, 6, 7, 5, 6, 7)


def test_a_text_that_says_nothing_twice_gets_no_drafts() -> None:
    assert Lookup().drafts(list(range(50)), 4) == ()
    assert Lookup().drafts([3], 4) == () == Lookup().drafts([], 4)


def test_a_text_that_grows_gets_the_same_drafts_as_one_that_is_there_at_once() -> None:
    random, text, growing = Random(4), list[int](), Lookup()
    for _ in range(400):
        text.append(random.randrange(6))
        drafts = growing.drafts(text, 3)
        assert drafts == Lookup().drafts(text, 3)
        found = {
            tuple(text[i + n : i + n + 1]) for n in (2, 3) for i in range(len(text) - n) if text[i : i + n] == text[-n:]
        }
        assert bool(drafts) == bool(found) and (not drafts or drafts[:1] in found)


def test_a_long_prompt_is_taken_in_bit_by_bit() -> None:
    text, lookup = [1, 2] * TOKENS_PER_CALL, Lookup()
    assert lookup.drafts(text, 2) == ()
    assert lookup.drafts(text, 2) == (1, 2)
