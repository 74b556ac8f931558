"""Stop strings end an answer at the same character wherever tokens begin and end; tokens leave with all their text."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.text.stops import StopStrings
from mesh.messages.jobs import Token

STRINGS = st.lists(st.text("ab.", min_size=1, max_size=4), max_size=3).map(tuple)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.text("ab.", max_size=4), max_size=12), STRINGS, st.booleans())
def test_the_text_ends_before_the_first_completed_stop_string(
    pieces: list[str], strings: tuple[str, ...], include: bool
) -> None:
    stops = StopStrings(strings, include=include)
    shown, tokens = "", []
    for position, text in enumerate(pieces):
        piece = stops.push(Token(position, 0), text)
        shown += piece.text
        tokens += piece.tokens
        if stops.matched is not None:
            break
        released = "".join(pieces[: len(tokens)])
        assert shown == released, "tokens and text leave together"
        assert not any(string in shown for string in strings)
    rest = stops.flush()
    shown += rest.text
    tokens += rest.tokens
    whole = "".join(pieces)
    ends = [whole.find(string) + len(string) for string in strings if string in whole]
    if not ends:
        assert (shown, stops.matched) == (whole, None)
    else:
        assert stops.matched is not None
        assert whole.find(stops.matched) + len(stops.matched) == min(ends)
        assert shown == whole[: min(ends) - (0 if include else len(stops.matched))]
    assert [token.position for token in tokens] == list(range(len(tokens)))


def test_text_is_held_only_while_it_may_be_part_of_a_stop_string() -> None:
    stops = StopStrings(("<end>",))
    pushed = [stops.push(Token(i, 0), text).text for i, text in enumerate(["a", "b<e", "n", "x", "<en"])]
    assert pushed == ["a", "", "", "b<enx", ""]
    assert stops.flush().text == "<en"


def test_without_stop_strings_nothing_is_held() -> None:
    stops = StopStrings(())
    assert [stops.push(Token(i, 0), text).text for i, text in enumerate("ab")] == ["a", "b"]


def test_text_before_min_tokens_is_no_match_and_is_not_held() -> None:
    stops = StopStrings(("ab",))
    assert stops.push(Token(0, 0), "ab", active=False).text == "ab"
    assert stops.matched is None
    assert stops.push(Token(1, 0), "xab").text == "x"
    assert stops.matched == "ab"
