"""Frames, greetings and handles: what comes out is what went in, and nothing else comes out."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtransfer.frames import GREETING_BYTES, WELCOME_BYTES, Greeting, Malformed, PoolHandle, Welcome
from kvtransfer.portions import COUNT_BYTES, FRAME_BYTES, Frame, pack_portion, portion_bytes, unpack_portion
from kvtransfer.transfer import Span
from mesh.messages.page_shape import PageShape, opaque_pages

SHAPE = opaque_pages((24, 16384), content="pairs-32-64-v1")
U64 = st.integers(0, 2**64 - 1)


SPANS = st.builds(
    lambda index, first: Span(index, 0, 0, first, 24 - first), st.integers(0, 2**32 - 1), st.integers(0, 23)
)


def unpack(raw, shape=SHAPE):
    head, rest = raw[:COUNT_BYTES], raw[COUNT_BYTES:]
    assert len(rest) == portion_bytes(head)
    return unpack_portion(rest, shape)


@given(st.binary(min_size=32, max_size=32), st.lists(SPANS, min_size=1), U64, st.integers(0, 2**31))
def test_portions_survive_the_wire(ticket, spans, checksum, round):
    raw = pack_portion(ticket, spans, round, [checksum] * len(spans), SHAPE)
    assert len(raw) == COUNT_BYTES + len(spans) * FRAME_BYTES
    assert unpack(raw) == [
        Frame(ticket, span.index, span.first_layer, span.layers, round, checksum, span.layers * 16384) for span in spans
    ]


@given(st.binary(min_size=16, max_size=16), U64, U64)
def test_greetings_and_handles_survive_the_wire(token, writer, receiver):
    hello = Greeting(token, writer, receiver, SHAPE)
    welcome = Welcome(True, receiver, 4000, SHAPE)
    handle = PoolHandle(b"TCP1", token, receiver, "[::1]:80")
    assert (Greeting.unpack(hello.pack()), len(hello.pack())) == (hello, GREETING_BYTES)
    assert (Welcome.unpack(welcome.pack()), len(welcome.pack())) == (welcome, WELCOME_BYTES)
    assert PoolHandle.unpack(handle.pack()) == handle


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_malformed_and_nothing_worse(raw):
    for parse in (Greeting.unpack, Welcome.unpack, PoolHandle.unpack, lambda raw: portion_bytes(raw[:8].ljust(8))):
        with pytest.raises(Malformed):
            parse(raw)


@given(st.integers(0, GREETING_BYTES - 1), st.integers(1, 255))
def test_a_damaged_hello_is_malformed_or_another_hello(place, change):
    raw = bytearray(Greeting(b"t" * 16, 1, 2, SHAPE).pack())
    raw[place] ^= change
    try:
        assert Greeting.unpack(raw) != Greeting(b"t" * 16, 1, 2, SHAPE) or place in (6, 7)
    except Malformed:
        pass


@pytest.mark.parametrize(("first", "layers", "length"), [(0, 24, 1), (23, 2, 32768), (0, 0, 0), (25, 1, 16384)])
def test_a_frame_that_does_not_fit_its_page_is_malformed(first, layers, length):
    raw = pack_portion(b"t" * 32, [Span(0, 0, 0, 0, 1), Span(0, 0, 0, first, layers)], 0, [0, 0], SHAPE)
    with pytest.raises(Malformed):
        unpack(raw[:-8] + length.to_bytes(8, "little"))


@given(st.integers(0, FRAME_BYTES - 1), st.integers(1, 255))
def test_a_damaged_frame_is_malformed_or_another_frame(place, change):
    raw = bytearray(pack_portion(b"t" * 32, [Span(1, 0, 0, 2, 3)], 4, [5], SHAPE))
    whole = unpack(bytes(raw))
    raw[COUNT_BYTES + place] ^= change
    try:
        assert unpack(bytes(raw)) != whole or place in (6, 7)
    except Malformed:
        pass


@pytest.mark.parametrize(
    ("shape", "field"),
    [
        (PageShape(0, SHAPE.segments), "page_tokens"),
        (PageShape(32, ()), "segments"),
        (PageShape(32, SHAPE.segments * 5), "segments"),
        (PageShape(32, (replace(SHAPE.segments[0], content="x" * 65),)), r"segments\[0\].content"),
        (PageShape(32, (replace(SHAPE.segments[0], layers=0),)), r"segments\[0\].layers"),
    ],
)
def test_a_shape_that_no_pages_have_is_an_error_that_names_the_field(shape, field):
    with pytest.raises(ValueError, match=field):
        Greeting(b"t" * 16, 1, 2, shape).pack()


def test_a_shape_from_the_wire_is_checked_too():
    raw = bytearray(Greeting(b"t" * 16, 1, 2, SHAPE).pack())
    at = raw.index((24).to_bytes(4, "little") + (16384).to_bytes(8, "little"))
    raw[at : at + 4] = (1 << 31).to_bytes(4, "little")
    with pytest.raises(Malformed, match=r"shape.segments\[0\].layers: 2147483648 is not between"):
        Greeting.unpack(raw)


def test_the_segments_of_a_page_survive_the_wire_and_bound_its_frames():
    shape = opaque_pages((24, 16384), (2, 4096), content="pairs-32-64-v1+draft")
    assert Greeting.unpack(Greeting(b"t" * 16, 1, 2, shape).pack()).shape == shape
    across = pack_portion(b"t" * 32, [Span(0, 0, 0, 22, 3)], 0, [0], shape)
    (frame,) = unpack(across, shape)
    assert frame.length == 2 * 16384 + 4096
    with pytest.raises(Malformed):
        unpack(across[:-8] + (3 * 16384).to_bytes(8, "little"), shape)
