"""The layout of a page: the layers of the model and, behind them, those of its draft model if there is one.

Both runners lay their pages out like this and describe them by it to other workers (`mesh/messages/page_shape.py`)."""

from collections.abc import Sequence

from mesh.messages.page_shape import CONTENT_LETTERS, KV, PageSegment


def kv_segment(
    model_hash: str, *, layers: int, layer_bytes: int, tiles: str, dtype: str, heads: int, head_dim: int
) -> PageSegment:
    """The layers of one model inside every page, with all its KV heads. The hash tells other workers whose keys and
    values they are: only the same model can read them."""
    shard = {"heads": heads, "first_head": 0, "shard_heads": heads, "head_dim": head_dim}
    return PageSegment(KV, model_hash[:CONTENT_LETTERS], layers, layer_bytes, tiles, dtype, **shard)


def check_copies(copies: Sequence[tuple[int, int]], *, step: int, pages: int) -> None:
    """A step may copy pages only inside the pool: any other index would touch foreign memory."""
    for source, target in copies:
        if not (0 <= source < pages and 0 <= target < pages):
            raise ValueError(f"step {step} copies page {source} to {target} of a pool of {pages}")
