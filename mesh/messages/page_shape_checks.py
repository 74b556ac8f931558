"""Checks the form of pages that a peer states, before anything computes with it or lays memory out by it.

It comes with KvHello, with a worker's Hello and over the transports. A problem names the field; the peer is refused
with it, and nothing else is harmed."""

from mesh.messages.field_checks import range_problem, text_problem
from mesh.messages.page_fit import converts, end, head_bytes
from mesh.messages.page_shape import KV, ROWS, PageSegment, PageShape

MOST_PAGE_TOKENS = 1 << 16
MOST_PAGE_BYTES = 1 << 40
MOST_SEGMENTS = 4  # segments in a page, at most
MOST_LAYERS = 4096  # layers in a segment, at most
MOST_HEADS = 1 << 16
MOST_HEAD_DIM = 1 << 16
MOST_NAME_LETTERS = {"kind": 16, "content": 64, "tiles": 16, "dtype": 16}


def shape_problem(shape: PageShape, name: str = "shape") -> str:
    """The first field that no worker of this version sends so, and why; empty: none."""
    if problem := range_problem(f"{name}.page_tokens", shape.page_tokens, 1, MOST_PAGE_TOKENS):
        return problem
    if not 0 < len(shape.segments) <= MOST_SEGMENTS:
        return f"{name}.segments: are {len(shape.segments)}, not 1 to {MOST_SEGMENTS}"
    for index, segment in enumerate(shape.segments):
        if problem := _segment(f"{name}.segments[{index}]", segment, shape.page_tokens):
            return problem
    return range_problem(f"{name}.segments: bytes of a page", shape.page_bytes, 1, MOST_PAGE_BYTES)


def _segment(name: str, segment: PageSegment, page_tokens: int) -> str:
    return (
        next((why for each in MOST_NAME_LETTERS if (why := _letters(name, each, getattr(segment, each)))), "")
        or ("" if segment.kind else f"{name}.kind: is empty")
        or range_problem(f"{name}.layers", segment.layers, 1, MOST_LAYERS)
        or range_problem(f"{name}.layer_bytes", segment.layer_bytes, 1, MOST_PAGE_BYTES)
        or range_problem(f"{name}.heads", segment.heads, 0, MOST_HEADS)
        or range_problem(f"{name}.first_head", segment.first_head, 0, segment.heads)
        or range_problem(f"{name}.shard_heads", segment.shard_heads, 0, segment.heads - segment.first_head)
        or range_problem(f"{name}.head_dim", segment.head_dim, 0, MOST_HEAD_DIM)
        or (_kv(name, segment, page_tokens) if segment.kind == KV else "")
        or (_rows(name, segment, page_tokens) if segment.kind == ROWS else "")
    )


def _letters(name: str, field: str, text: str) -> str:
    """Names are ASCII, so that they have a fixed size in the greeting of a transport."""
    if problem := text_problem(f"{name}.{field}", text, MOST_NAME_LETTERS[field]):
        return problem
    return "" if text.isascii() else f"{name}.{field}: {text!r} has letters that are not ASCII"


def _kv(name: str, segment: PageSegment, page_tokens: int) -> str:
    """The size follows from the other fields in the tile orders that this version knows by heart."""
    if segment.shard_heads < 1 or segment.head_dim < 1:
        return f"{name}.shard_heads, head_dim: {segment.shard_heads} heads of {segment.head_dim} elements are no keys"
    if end(segment) > segment.heads:
        return f"{name}.shard_heads: the shard ends behind head {segment.heads}"
    if not converts(segment):
        return ""
    if segment.tiles in ("pairs-v1", "codes-v1", "nibbles-v1") and (page_tokens % 2 or segment.head_dim % 2):
        return f"{name}.tiles: pages of {page_tokens} tokens and heads of {segment.head_dim} hold no pairs"
    wanted = 2 * segment.shard_heads * head_bytes(segment, page_tokens)
    if segment.layer_bytes == wanted:
        return ""
    return f"{name}.layer_bytes: {segment.layer_bytes}, and the heads of {page_tokens} tokens take {wanted}"


def _rows(name: str, segment: PageSegment, page_tokens: int) -> str:
    if segment.layer_bytes % page_tokens == 0:
        return ""
    return f"{name}.layer_bytes: {segment.layer_bytes} bytes are no whole rows of {page_tokens} tokens"
