"""Forms of pages that a peer may state: those that fit `OURS`, those that do not, and those that no worker has."""

from dataclasses import fields, replace
from random import Random
from typing import Any

from mesh.messages.page_shape import KV, OPAQUE, ROWS, PageSegment, PageShape
from tests.fuzz.cases import ODD_INTS, chance

HEADS, DIM = 2, 4
# Dtypes and bytes of a token's keys, by tile order; other orders hold bf16.
_TOKEN = {"fp32-v1": ("fp32", DIM * 4), "codes-v1": ("int8", DIM + 2), "nibbles-v1": ("int4", DIM // 2 + 2)}


def kv_segment(
    tokens: int, tiles: str = "pairs-v1", *, layers: int = 2, first: int = 0, shard: int = HEADS
) -> PageSegment:
    """Keys and values of a model with two heads."""
    dtype, token = _TOKEN.get(tiles, ("bf16", DIM * 2))
    return PageSegment(KV, "model", layers, 2 * shard * tokens * token, tiles, dtype, HEADS, first, shard, DIM)


def shape_of(tokens: int, tiles: str = "pairs-v1", *, first: int = 0, shard: int = HEADS) -> PageShape:
    rows = PageSegment(ROWS, "draft", 1, 16 * tokens)
    return PageShape(tokens, (kv_segment(tokens, tiles, first=first, shard=shard), rows))


OURS = shape_of(8)
_FITTING = (OURS, shape_of(4), shape_of(16), shape_of(8, "gpu-v1"), shape_of(8, first=1, shard=1))
_OTHERS = (
    shape_of(8, "fp32-v1"),
    shape_of(8, "codes-v1"),
    shape_of(8, "nibbles-v1"),
    shape_of(6),
    shape_of(8, "later-v9"),
    PageShape(8, (PageSegment(OPAQUE, "state", 2, 64), PageSegment(ROWS, "draft", 1, 128))),
    PageShape(8, (PageSegment("other", "model", 2, 256),)),
)
_TEXTS = (
    "",
    KV,
    ROWS,
    OPAQUE,
    "pairs-v1",
    "gpu-v1",
    "fp32-v1",
    "codes-v1",
    "nibbles-v1",
    "bf16",
    "int8",
    "int4",
    "fp32",
    "model",
    "x" * 16,
    "later",
)


def drawn_shape(rng: Random) -> PageShape:
    """A form that passes the checks of a peer's shape, or does not."""
    shape = rng.choice(_FITTING) if chance(rng, 0.6) else rng.choice(_OTHERS)
    return shape if chance(rng, 0.6) else _packable(rng, shape)


def odd_shape(rng: Random) -> PageShape:
    """A form with one or two fields of any value: no worker sends most of them."""
    shape = rng.choice((*_FITTING, *_OTHERS))
    for _ in range(rng.randint(1, 2)):
        match rng.randrange(5):
            case 0:
                shape = PageShape(rng.choice(ODD_INTS[:9]), shape.segments)
            case 1:
                shape = PageShape(shape.page_tokens, shape.segments * rng.choice((0, 2, 3)))
            case _ if shape.segments:
                at = rng.randrange(len(shape.segments))
                segments = [*shape.segments[:at], _odd_segment(rng, shape.segments[at]), *shape.segments[at + 1 :]]
                shape = PageShape(shape.page_tokens, tuple(segments))
            case _:
                pass
    return shape


def _odd_segment(rng: Random, segment: PageSegment) -> PageSegment:
    name = rng.choice([field.name for field in fields(PageSegment)])
    value: Any = rng.choice(_TEXTS) if isinstance(getattr(segment, name), str) else rng.choice(ODD_INTS[:9])
    return replace(segment, **{name: value})


def _packable(rng: Random, shape: PageShape) -> PageShape:
    """Another number of layers or of heads: sound by itself."""
    first, *rest = shape.segments
    return PageShape(shape.page_tokens, (replace(first, layers=rng.choice((1, 3, 64))), *rest))
