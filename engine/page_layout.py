"""The layout of a page: the layers of the model and, behind them, those of its draft model if there is one.

Both runners lay their pages out like this. Two workers may exchange pages only when the names of their layouts are
equal: then every byte has its place on both sides."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PageSegment:
    """The layers of one model inside every page."""

    layers: int
    layer_bytes: int  # bytes of one layer in one page: keys and values of all KV heads
    tiles: str  # name of the order of these bytes
    model_hash: str

    @property
    def total_bytes(self) -> int:
        return self.layers * self.layer_bytes


@dataclass(frozen=True, slots=True)
class PageLayout:
    segments: tuple[PageSegment, ...]  # the model's, then its draft's

    @property
    def layers(self) -> int:
        return sum(segment.layers for segment in self.segments)

    @property
    def page_bytes(self) -> int:
        return sum(segment.total_bytes for segment in self.segments)

    @property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        """(layers, bytes of one layer) of each segment, as transfers need them."""
        return tuple((segment.layers, segment.layer_bytes) for segment in self.segments)

    @property
    def name(self) -> str:
        """Contains the draft model's hash, since only the same draft model can read what a draft model wrote."""
        model, *drafts = self.segments
        return "+".join((model.tiles, *(f"{draft.tiles}-{draft.model_hash[:16]}" for draft in drafts)))

    def first_byte(self, segment: int) -> int:
        """Byte offset of a segment inside a page."""
        return sum(before.total_bytes for before in self.segments[:segment])


def check_copies(copies: Sequence[tuple[int, int]], *, step: int, pages: int) -> None:
    """A step may copy pages only inside the pool: any other index would touch foreign memory."""
    for source, target in copies:
        if not (0 <= source < pages and 0 <= target < pages):
            raise ValueError(f"step {step} copies page {source} to {target} of a pool of {pages}")
