"""Pages of one form become pages of another: each element keeps its bits and its place in the text."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtransfer.conversion import ORDERS, Bytes, Conversion, Overlap, fill, pages_under
from mesh.messages.page_fit import CONVERTED_TILES, ELEMENT_BITS, SCALE_BYTES, page_obstacle
from mesh.messages.page_shape import KV, OPAQUE, ROWS, PageSegment, PageShape
from mesh.messages.page_shape_checks import shape_problem

HEADS, DIM = 4, 16
PAIRS = ("pairs-v1", "codes-v1")


def kv(tiles: str, page_tokens: int, *, layers: int = 2, first: int = 0, count: int = HEADS) -> PageSegment:
    dtype = CONVERTED_TILES[tiles][0]
    size = 2 * count * page_tokens * (DIM * ELEMENT_BITS[dtype] // 8 + SCALE_BYTES.get(dtype, 0))
    return PageSegment(KV, "model", layers, size, tiles, dtype, HEADS, first, count, DIM)


def pages_of(tiles: str, page_tokens: int, *, first: int = 0, count: int = HEADS) -> PageShape:
    """A model's layers, and behind them those of a draft, whose tokens have opaque rows."""
    segments = (kv(tiles, page_tokens, first=first, count=count), PageSegment(ROWS, "draft", 3, 24 * page_tokens))
    shape = PageShape(page_tokens, segments)
    assert shape_problem(shape) == ""
    return shape


@dataclass
class Text:
    """The elements of every token of a prompt, drawn at random: none is equal to its neighbour by accident."""

    keys: np.ndarray  # [layers, tokens, heads, dim]
    values: np.ndarray
    scales: np.ndarray  # scales of codes [layers, keys and values, tokens, heads]
    rows: np.ndarray  # [layers, tokens, 24]

    @property
    def tokens(self) -> int:
        return self.keys.shape[1]


def text(tokens: int, dtype: str, seed: int = 1) -> Text:
    random, words = np.random.default_rng(seed), {32: np.uint32, 16: np.uint16}.get(ELEMENT_BITS[dtype], np.uint8)
    most = min(1 << 16, 1 << ELEMENT_BITS[dtype])
    keys, values = (random.integers(1, most, (2, tokens, HEADS, DIM)).astype(words) for _ in range(2))
    scales = random.integers(1, 1 << 16, (2, 2, tokens, HEADS)).astype(np.uint16)
    return Text(keys, values, scales, random.integers(1, 256, (3, tokens, 24)).astype(np.uint8))


def written(shape: PageShape, text: Text) -> list[Bytes]:
    """The pages of this form that hold the text, element by element as the definitions of the orders say."""
    segment, size = shape.segments[0], shape.page_tokens
    heads = slice(segment.first_head, segment.first_head + segment.shard_heads)
    pages = []
    for begin in range(0, text.tokens, size):
        tiles = np.zeros((2, 2, segment.shard_heads, size * DIM), text.keys.dtype)
        for slot in range(min(size, text.tokens - begin)):
            for half, source in enumerate((text.keys, text.values)):
                at = place(segment.tiles, half, slot, np.arange(DIM), size)
                tiles[:, half][:, :, at] = source[:, begin + slot, heads]
        if segment.dtype == "int4":  # two elements share a byte, the one with the even place in its low bits
            tiles = tiles[..., ::2] | tiles[..., 1::2] << 4
        parts = [tiles.view(np.uint8)]
        if segment.dtype in SCALE_BYTES:
            scales = np.zeros((2, 2, segment.shard_heads, size), np.uint16)
            here = text.scales[:, :, begin : begin + size, heads]
            scales[..., : here.shape[2]] = here.transpose(0, 1, 3, 2)
            parts.append(scales.view(np.uint8))
        rows = np.zeros((3, size, 24), np.uint8)
        rows[:, : min(size, text.tokens - begin)] = text.rows[:, begin : begin + size]
        pages.append(np.concatenate([np.concatenate(parts, axis=-1).reshape(-1), rows.reshape(-1)]))
    return pages


def place(tiles: str, half: int, slot: int, element: np.ndarray, size: int) -> np.ndarray:
    """Indexes of elements in a head's tile. `half`: 0 is a key, 1 a value."""
    if tiles in PAIRS and half == 0:
        return element // 2 * 2 * size + 2 * slot + element % 2
    if tiles in PAIRS:
        return slot // 2 * 2 * DIM + 2 * element + slot % 2
    if tiles == "nibbles-v1" and half == 0:
        return 2 * (element // 2 * size + slot) + element % 2
    if tiles == "nibbles-v1":  # element i shares its byte with element i + DIM / 2 of the same token
        return 2 * ((slot // 2 * (DIM // 2) + element % (DIM // 2)) * 2 + slot % 2) + element // (DIM // 2)
    if tiles == "fp32-v1" and half == 0:
        return element * size + slot
    return slot * DIM + element


def converted(
    source: PageShape, target: PageShape, pages: list[Bytes], tokens: int, first: int = 0, layers: int | None = None
) -> list[Bytes]:
    """Every page of the target that holds some of the tokens: these layers of it."""
    conversion, count = Conversion(source, target), target.layers if layers is None else layers
    begin, length = source.place(first, count)
    made = []
    for index in range(-(-tokens // target.page_tokens)):
        under = pages_under(index, tokens, source_tokens=source.page_tokens, target_tokens=target.page_tokens)
        made.append(conversion.span(index, [pages[i][begin : begin + length] for i in under], first, count))
    return made


def same(one: list[Bytes], other: list[Bytes]) -> bool:
    return len(one) == len(other) and all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


SIZES = st.sampled_from([2, 4, 6, 16, 32, 48, 64])
ORDERS_OF_BF16 = st.sampled_from(["pairs-v1", "gpu-v1"])


@given(SIZES, SIZES, ORDERS_OF_BF16, ORDERS_OF_BF16, st.integers(1, 150))
def test_a_converted_page_is_what_the_receivers_own_prefill_would_have_written(mine, other, order, another, tokens):
    source, target, what = pages_of(order, mine), pages_of(another, other), text(tokens, "bf16")
    made = converted(source, target, written(source, what), tokens)
    expected = written(target, what)
    size = source.page_tokens
    beyond = -(-tokens // size) * size  # the writer's last page goes on with what is in it
    assert all(np.array_equal(a[b != 0], b[b != 0]) for a, b in zip(made, expected, strict=True))
    assert beyond >= tokens and same(made, expected), "unused slots were zero in the source"


@given(SIZES, SIZES, st.integers(1, 150))
def test_fp32_pages_change_their_size_too(mine, other, tokens):
    source, target, what = pages_of("fp32-v1", mine), pages_of("fp32-v1", other), text(tokens, "fp32")
    assert same(converted(source, target, written(source, what), tokens), written(target, what))


@given(
    SIZES,
    SIZES,
    st.integers(1, 150),
    st.sampled_from([(0, HEADS), (1, 2)]),
    st.sampled_from(["codes-v1", "nibbles-v1"]),
)
def test_pages_of_codes_take_their_scales_along(mine, other, tokens, shard, tiles):
    source, dtype = pages_of(tiles, mine), CONVERTED_TILES[tiles][0]
    target, what = pages_of(tiles, other, first=shard[0], count=shard[1]), text(tokens, dtype)
    assert same(converted(source, target, written(source, what), tokens), written(target, what))


def test_codes_of_another_dtype_are_refused_by_name():
    source = pages_of("codes-v1", 16)
    other = replace(source.segments[0], dtype="fp8-e4m3")
    assert shape_problem(PageShape(16, (other, source.segments[1]))) == ""
    assert "dtype: prefill has 'int8', decode 'fp8-e4m3'" in page_obstacle(
        source, PageShape(16, (other, source.segments[1]))
    )
    smaller = replace(source.segments[0], layer_bytes=2 * HEADS * 16 * DIM)
    assert "layer_bytes: 2048, and the heads of 16 tokens take 2304" in shape_problem(PageShape(16, (smaller,)))
    half = kv("nibbles-v1", 16)
    assert "layer_bytes: 2304, and the heads of 16 tokens take 1280" in shape_problem(
        PageShape(16, (replace(half, layer_bytes=2304),))
    )
    halved = PageShape(16, (half, source.segments[1]))
    assert "dtype: prefill has 'int8', decode 'int4'" in page_obstacle(source, halved)
    assert "hold no pairs" in shape_problem(PageShape(16, (replace(half, head_dim=15),)))


@given(SIZES, SIZES, ORDERS_OF_BF16, ORDERS_OF_BF16, st.integers(1, 100))
def test_there_and_back_is_the_identity(mine, other, order, another, tokens):
    source, target = pages_of(order, mine), pages_of(another, other)
    pages = written(source, text(tokens, "bf16"))
    assert same(converted(target, source, converted(source, target, pages, tokens), tokens), pages)


@given(st.integers(0, 4), st.integers(1, 5))
def test_groups_of_layers_add_up_to_the_page(first, layers):
    layers = min(layers, 5 - first)
    source, target, what = pages_of("pairs-v1", 16), pages_of("pairs-v1", 32), text(70, "bf16")
    begin, length = target.place(first, layers)
    part = converted(source, target, written(source, what), 70, first, layers)
    assert same(part, [page[begin : begin + length] for page in written(target, what)])


@pytest.mark.parametrize("sizes", [(16, 16), (16, 32), (32, 16)])
@pytest.mark.parametrize("shards", [(0, 2), (2, 2), (1, 1), (0, 4)])
def test_a_writer_of_all_heads_fills_the_pools_of_shards(shards, sizes):
    first, count = shards
    source, target = pages_of("pairs-v1", sizes[0]), pages_of("pairs-v1", sizes[1], first=first, count=count)
    what = text(53, "bf16")
    assert same(converted(source, target, written(source, what), 53), written(target, what))


@pytest.mark.parametrize("parts", [[(0, 4)], [(0, 2), (2, 2)], [(0, 1), (1, 2), (3, 1)]])
@pytest.mark.parametrize("into", [(0, 4), (1, 2)])
def test_writers_of_shards_together_fill_a_page_of_all_heads(parts, into):
    """2 -> 1, 2 -> 4 and odd cuts: each writer moves its own heads, and none touches another's."""
    what, target = text(32, "bf16"), pages_of("gpu-v1", 32, first=into[0], count=into[1])
    out = np.zeros(target.page_bytes, np.uint8)
    for first, count in parts:
        source = pages_of("pairs-v1", 16, first=first, count=count)
        one, two = written(source, what)
        fill(source, target, out, [(Overlap(0, 0, 16), one), (Overlap(16, 0, 16), two)], 0, 5)
    assert np.array_equal(out, written(target, what)[0])


def test_two_shards_become_four_and_four_become_two():
    what, sizes = text(40, "bf16"), ((16, 32), (32, 16))
    for mine, other in sizes:
        halves = [pages_of("pairs-v1", mine, first=first, count=2) for first in (0, 2)]
        for head in range(4):
            quarter = pages_of("gpu-v1", other, first=head, count=1)
            source = halves[head // 2]
            assert same(converted(source, quarter, written(source, what), 40), written(quarter, what))


def test_every_bit_of_a_number_arrives_as_it_was():
    """Infinities, NaN payloads, denormals and minus zero: elements are moved, never computed."""
    source, target = pages_of("pairs-v1", 16), pages_of("gpu-v1", 32)
    what = text(32, "bf16")
    what.keys[:] = np.arange(what.keys.size).reshape(what.keys.shape) + 0x7F80
    what.values[:] = np.arange(what.values.size).reshape(what.values.shape) + 0xFF80
    assert same(converted(source, target, written(source, what), 32), written(target, what))


def test_an_opaque_segment_moves_byte_for_byte_beside_keys_and_values_that_are_converted():
    """In every group of layers, wherever the segment lies in the page."""
    state = PageSegment(OPAQUE, "state", 3, 64)
    mine, theirs = kv("pairs-v1", 16), kv("gpu-v1", 16)
    what, random = text(16, "bf16"), np.random.default_rng(3)
    opaque = random.integers(0, 256, 3 * 64).astype(np.uint8)
    keys = [
        written(PageShape(16, (segment, pages_of("gpu-v1", 16).segments[1])), what)[0] for segment in (mine, theirs)
    ]
    for order in (1, -1):
        source, target = (PageShape(16, (segment, state)[::order]) for segment in (mine, theirs))
        assert page_obstacle(source, target) == ""
        begin, end = (np.concatenate([part[: mine.total_bytes], opaque][::order]) for part in keys)
        for first, layers in ((0, 5), (0, 2), (1, 3), (3, 1), (2, 3)):
            at, length = source.place(first, layers)
            made = Conversion(source, target).span(4, [begin[at : at + length]], first, layers)
            assert np.array_equal(made, end[at : at + length]), (order, first, layers)


def test_slots_without_a_page_are_zero_and_not_what_was_in_memory():
    source, target, what = pages_of("pairs-v1", 16), pages_of("pairs-v1", 64), text(16, "bf16")
    (made,) = converted(source, target, written(source, what), 16)
    assert np.array_equal(made, written(target, what)[0])


def test_forms_that_cannot_be_converted_and_pages_that_are_not_there_are_errors():
    source = pages_of("pairs-v1", 16)
    with pytest.raises(ValueError, match="dtype"):
        Conversion(source, pages_of("fp32-v1", 16))
    with pytest.raises(ValueError, match="2 pages of 16 tokens are more than a page of 16 takes"):
        Conversion(source, pages_of("gpu-v1", 16)).span(0, written(source, text(32, "bf16")), 0, 5)
    with pytest.raises(IndexError, match="behind a prompt of 32 tokens"):
        pages_under(2, 32, source_tokens=32, target_tokens=16)


def test_which_pages_lie_under_a_page():
    def under(index, stop, mine, other):
        return list(pages_under(index, stop, source_tokens=mine, target_tokens=other))

    assert under(1, 100, 16, 32) == [2, 3] and under(3, 100, 16, 32) == [6]
    assert under(3, 100, 32, 16) == [1] and under(6, 100, 32, 16) == [3]
    assert under(1, 100, 48, 32) == [0, 1] and under(2, 100, 16, 16) == [2]


def test_every_order_that_is_said_to_be_convertible_has_a_converter():
    assert ORDERS.keys() == CONVERTED_TILES.keys()
    assert replace(kv("pairs-v1", 16), tiles="gpu-v1") == kv("gpu-v1", 16)
