"""Whether the pages of one pool can be written into those of another: as they are, converted on the way, or not at all.

Gateways ask when workers register, decode when a session begins, and the transports when they connect (steps 1 and 3 of
a request's life), all by these rules; the reason is text for logs. `kvtransfer/conversion.py` carries a conversion
out."""

from mesh.messages.page_shape import KINDS, KV, OPAQUE, PageSegment, PageShape

COMPARED = ("kind", "content", "layers", "dtype", "heads", "head_dim")  # fields that no conversion changes
AS_THEY_ARE = (
    "cuda_ipc",
    "nccl",
    "rdma",
)  # transports that convert nothing: no byte of a page passes through the processor
ELEMENT_BITS = {"fp32": 32, "bf16": 16, "int8": 8, "fp8-e4m3": 8, "int4": 4}  # by dtype
# Size of a scale, by dtype; codes have one per token and head, behind a head's tile.
SCALE_BYTES = {"int8": 2, "fp8-e4m3": 2, "int4": 2}
CONVERTED_TILES = {  # tile orders and the dtypes they hold
    "fp32-v1": ("fp32",),
    "pairs-v1": ("bf16",),
    "gpu-v1": ("bf16",),
    "codes-v1": ("int8", "fp8-e4m3"),
    "nibbles-v1": ("int4",),
}


def page_obstacle(source: PageShape, target: PageShape) -> str:
    """Why pages of `source` cannot be written into a pool of `target`; empty: they can, converted where they differ."""
    mine, other = source.segments, target.segments
    if unknown := next((each.kind for each in (*mine, *other) if each.kind not in KINDS), ""):
        return f"page segments of kind {unknown!r} are not known to this version of Baton, only {', '.join(KINDS)}"
    if source == target:
        return ""
    if [each.content for each in mine[1:]] != [each.content for each in other[1:]]:
        named = ["; ".join(map(str, segments[1:])) or "none" for segments in (mine, other)]
        return f"draft models differ, so give both tiers the same `draft`: prefill has {named[0]}, decode {named[1]}"
    for index, (one, another) in enumerate(zip(mine, other, strict=True)):
        if why := _differs(one, another, source.page_tokens, target.page_tokens):
            return f"pages differ in segment {index}: {why}"
    return ""


def transport_obstacle(transport: str, source: PageShape, target: PageShape) -> str:
    """The same over this transport, which may be one that converts nothing."""
    why = page_obstacle(source, target)
    if why or source == target or transport not in AS_THEY_ARE:
        return why
    return f"it moves pages only as they are; prefill has {source}, decode {target}"


def converts(segment: PageSegment) -> bool:
    """Whether this version knows the order of the segment's elements."""
    return segment.dtype in CONVERTED_TILES.get(segment.tiles, ())


def head_bytes(segment: PageSegment, tokens: int) -> int:
    """Bytes of the keys, or of the values, of one head in one layer of a page."""
    return tokens * (segment.head_dim * ELEMENT_BITS[segment.dtype] // 8 + SCALE_BYTES.get(segment.dtype, 0))


def end(segment: PageSegment) -> int:
    """The head behind the last one of the segment's shard."""
    return segment.first_head + segment.shard_heads


def _differs(source: PageSegment, target: PageSegment, source_tokens: int, target_tokens: int) -> str:
    for name in COMPARED if source.kind == KV else (*COMPARED, "tiles", "first_head", "shard_heads"):
        mine, other = getattr(source, name), getattr(target, name)
        if mine != other:
            return f"{name}: prefill has {mine!r}, decode {other!r}"
    sizes = f"prefill's pages have {source_tokens} tokens, decode's {target_tokens}"
    if source.kind == OPAQUE and source_tokens != target_tokens:
        return f"page_tokens: {sizes}, and opaque segments are moved only as they are"
    if source.kind != KV:
        same = source.layer_bytes * target_tokens == target.layer_bytes * source_tokens
        return "" if same else f"layer_bytes: prefill has {source.layer_bytes}, decode {target.layer_bytes}; {sizes}"
    if source == target and source_tokens == target_tokens:
        return ""
    for segment in (source, target):
        if not converts(segment):
            return f"tiles: {segment.tiles!r} of {segment.dtype!r} are moved only as they are; {sizes}"
    if source_tokens % 2 or target_tokens % 2 or source.head_dim % 2:
        return f"page_tokens: {sizes}, of heads with {source.head_dim} elements; odd sizes are not converted"
    if target.first_head < source.first_head or end(target) > end(source):
        mine, other = (f"{each.first_head} to {end(each)}" for each in (source, target))
        return f"heads: prefill's pages hold {mine} and decode's {other}, which no single writer can fill"
    return ""
