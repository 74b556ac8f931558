"""Block hashes: a page's hash names everything that its keys and values depend on."""

from hypothesis import given
from hypothesis import strategies as st

from mesh.messages.hashing import DIGEST_BYTES, block_hashes

TOKENS = tuple(range(100, 137))  # nine pages of four, and one token


def hashes(tokens: tuple[int, ...] = TOKENS, **changed: object) -> list[bytes]:
    given_by: dict[str, object] = {"page_tokens": 4, "numerics": "class a", "salt": b"tenant"} | changed
    return block_hashes(tokens, **given_by)  # type: ignore[arg-type]


def test_only_full_pages_have_a_hash() -> None:
    assert [len(hashes(TOKENS[:n])) for n in (0, 3, 4, 7, 8, 37)] == [0, 0, 1, 1, 2, 9]
    assert all(len(digest) == DIGEST_BYTES for digest in hashes())
    assert len(set(hashes())) == 9


def test_equal_pages_behind_different_beginnings_differ() -> None:
    one, other = hashes((1, 2, 3, 4, 5, 6, 7, 8)), hashes((1, 2, 3, 9, 5, 6, 7, 8))
    assert one[1] != other[1]
    same = hashes((7, 7, 7, 7, 7, 7, 7, 7))
    assert same[0] != same[1]


def test_class_salt_and_page_size_are_part_of_every_hash() -> None:
    for changed in ({"numerics": "class b"}, {"salt": b""}, {"salt": b"another"}, {"page_tokens": 8}):
        assert not set(hashes(**changed)) & set(hashes()), changed


def test_hashes_are_the_same_in_every_process() -> None:
    assert block_hashes((1, 2, 3, 4), page_tokens=2, numerics="x")[1].hex() == EXPECTED


@given(st.lists(st.integers(0, 2**32 - 1), max_size=40), st.integers(0, 40), st.integers(1, 9))
def test_going_on_from_known_hashes_gives_the_same_chain(tokens: list[int], known: int, page: int) -> None:
    whole = block_hashes(tokens, page_tokens=page, numerics="x", salt=b"s")
    again = block_hashes(tokens, page_tokens=page, numerics="x", salt=b"s", known=whole[:known])
    assert again == whole


@given(st.lists(st.integers(0, 5), max_size=24), st.lists(st.integers(0, 5), max_size=24))
def test_two_texts_share_exactly_the_pages_that_they_have_in_common(one: list[int], other: list[int]) -> None:
    both = zip(*(block_hashes(text, page_tokens=3, numerics="x") for text in (one, other)), strict=False)
    for index, (a, b) in enumerate(both):
        assert (a == b) == (one[: 3 * index + 3] == other[: 3 * index + 3])


EXPECTED = "c95cadf4690f0424ff67ee2697274956"
