"""The form of a page: sizes, offsets, and a text that a person can read in a log."""

from mesh.messages.page_shape import KV, OPAQUE, PageSegment, PageShape, opaque_pages

MODEL = PageSegment(KV, "model", 6, 1024, "pairs-v1", "bf16", heads=4, first_head=2, shard_heads=1, head_dim=16)
STATE = PageSegment(OPAQUE, "state", 2, 30)


def test_segments_lie_one_behind_the_other_and_layers_count_through_them() -> None:
    shape = PageShape(16, (MODEL, STATE))
    assert (shape.layers, shape.page_bytes) == (8, 6 * 1024 + 60)
    assert [shape.first_byte(0), shape.first_byte(1)] == [0, 6144]
    assert shape.place(0, 8) == (0, shape.page_bytes) and shape.place(5, 2) == (5120, 1024 + 30)


def test_a_shape_as_text_names_tokens_kinds_and_heads() -> None:
    text = str(PageShape(16, (MODEL, STATE)))
    assert "16 tokens" in text and "heads 2 to 3 of 4 x 16" in text and "2 opaque layers of 30 bytes" in text


def test_pools_without_a_model_have_opaque_pages() -> None:
    assert opaque_pages((6, 64), (2, 32), content="x").page_bytes == 6 * 64 + 2 * 32
